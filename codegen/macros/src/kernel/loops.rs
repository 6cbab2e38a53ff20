//! Loops and what leaves them: `for`, `while`, `loop`, labelled blocks, `break`, `continue`, `return`.
//!
//! A device loop traces its body once. `break` in it becomes an operation, and what follows in the same region must not
//! be traced: the rewritten `break` also leaves the innermost labelled block around it, which stands for that region.
//! A region that turns out to be the host's (an unrolled loop, an `if` on a host value) passes the exit on outwards.

use std::mem::{replace, take};

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::visit_mut::VisitMut;
use syn::{Expr, ExprWhile, Label, Lifetime};

use super::branch::operand;
use super::rewrite::Rewriter;
use super::syntax::{RangeEnds, has_let, is_host, range_ends, simple_name, unparenthesised};

/// Something around the current place that an exit has to do with.
pub enum Frame {
    /// A loop or a labelled block.
    Loop(LoopFrame),
    /// A labelled block that stands for a region of the trace, if the region is the device's.
    Region(RegionFrame),
}

/// A loop or labelled block of the author's.
pub struct LoopFrame {
    number: usize,
    /// The author's label.
    label: Option<Lifetime>,
    /// Whether the device may run it; a host loop cannot be left under a device condition.
    device: bool,
    /// Whether it is a loop, which an exit without label can mean.
    is_loop: bool,
    /// Whether an exit means it.
    used: bool,
    /// Whether an exit from within it means a loop further out.
    crossed: bool,
}

/// An arm of an `if`, or the body of a loop.
pub struct RegionFrame {
    number: usize,
    is_arm: bool,
    /// Whether an exit leaves it.
    pub used: bool,
}

impl RegionFrame {
    /// An arm, to be left with `Arm::Exited`.
    pub fn arm(number: usize) -> RegionFrame {
        RegionFrame { number, is_arm: true, used: false }
    }

    fn body(number: usize) -> RegionFrame {
        RegionFrame { number, is_arm: false, used: false }
    }

    /// Its label.
    pub fn label(&self, span: Span) -> Lifetime {
        Lifetime::new(&format!("'__pw_r{}", self.number), span)
    }

    fn leave(&self, span: Span) -> TokenStream {
        let label = self.label(span);
        match self.is_arm {
            true => quote_spanned!(span=> break #label __pw::Arm::Exited),
            false => quote_spanned!(span=> break #label),
        }
    }
}

impl LoopFrame {
    fn new(number: usize, label: &Option<Label>, device: bool) -> LoopFrame {
        let label = label.as_ref().map(|l| l.name.clone());
        LoopFrame { number, label, device, is_loop: true, used: false, crossed: false }
    }

    /// The author's label, or one of ours.
    fn label(&self, span: Span) -> Lifetime {
        self.label.clone().unwrap_or_else(|| Lifetime::new(&format!("'__pw_l{}", self.number), span))
    }

    /// The variable that knows at run time whether the loop is the device's.
    fn handle(&self, span: Span) -> Ident {
        format_ident!("__pw_h{}", self.number, span = span)
    }
}

impl Rewriter {
    /// An expression that leaves the innermost region around the current place, if there is one.
    pub fn leave_region(&mut self, span: Span) -> Option<TokenStream> {
        let region = self.frames.iter_mut().rev().find_map(|f| match f {
            Frame::Region(region) => Some(region),
            Frame::Loop(_) => None,
        })?;
        region.used = true;
        Some(region.leave(span))
    }

    fn pop_loop(&mut self) -> Option<LoopFrame> {
        match self.frames.pop() {
            Some(Frame::Loop(frame)) => Some(frame),
            _ => None,
        }
    }

    /// `break` and `continue`.
    pub fn exit(&mut self, e: &mut Expr) {
        let (word, span, label, value) = match e {
            Expr::Break(b) => ("break", b.break_token.span, b.label.clone(), b.expr.take()),
            Expr::Continue(c) => ("continue", c.continue_token.span, c.label.clone(), None),
            _ => return,
        };
        let mut value = value;
        if let Some(value) = &mut value {
            self.visit_expr_mut(value);
        }
        let target = self.frames.iter().rposition(|f| match (f, &label) {
            (Frame::Loop(l), Some(label)) => l.label.as_ref() == Some(label),
            (Frame::Loop(l), None) => l.is_loop,
            (Frame::Region(_), _) => false,
        });
        // Outside any loop, or in a macro's: rustc says what is wrong, or knows better.
        let Some(target) = target else {
            if let (Expr::Break(b), Some(value)) = (e, value) {
                b.expr = Some(value);
            }
            return;
        };
        self.used = true;
        let keyword = Ident::new(word, span);
        let Frame::Loop(frame) = &mut self.frames[target] else { return };
        frame.used = true;
        let (handle, to) = (frame.handle(span), frame.label(span));
        let host_exit = quote_spanned!(span=> #keyword #to #value);
        if !frame.device {
            self.checks.push(quote_spanned!(span=> #handle.leave(#word);));
            *e = Expr::Verbatim(host_exit);
            return;
        }
        let leave = self.device_exit(target, span);
        *e = Expr::Verbatim(quote_spanned!(span=> if #handle.exit(#word) { #host_exit } else { #leave }));
    }

    /// Leaves the regions between the current place and the loop at `target`, as far as they are not the device's.
    fn device_exit(&mut self, target: usize, span: Span) -> TokenStream {
        let mut leave = TokenStream::new();
        for frame in &mut self.frames[target + 1..] {
            match frame {
                Frame::Loop(between) => between.crossed |= between.device,
                Frame::Region(region) => {
                    region.used = true;
                    leave = region.leave(span);
                }
            }
        }
        leave
    }

    /// `for`, over host iterators and device ranges.
    pub fn for_(&mut self, e: &mut Expr) {
        let Expr::ForLoop(f) = e else { return };
        self.range(&mut f.expr);
        self.visit_expr_mut(&mut f.expr);
        self.used = true;
        let number = self.number();
        let span = f.for_token.span;
        let marks = self.marks_for(&f.pat);
        self.frames.push(Frame::Loop(LoopFrame::new(number, &f.label, true)));
        self.frames.push(Frame::Region(RegionFrame::body(number)));
        self.block(&mut f.body);
        let Some(Frame::Region(region)) = self.frames.pop() else { return };
        let Some(frame) = self.pop_loop() else { return };
        let name = simple_name(&f.pat).map(|n| n.to_string()).unwrap_or_default();
        let (pat, over, body, attrs) = (&f.pat, &f.expr, &f.body, &f.attrs);
        let body = match region.used {
            true => {
                let label = region.label(span);
                quote_spanned!(span=> #label: #body)
            }
            false => quote_spanned!(span=> #body),
        };
        if !frame.used && !frame.crossed {
            let label = &f.label;
            let over = quote_spanned!(span=> __pw::each(#over, #name));
            let body = if marks.is_empty() { body } else { quote_spanned!(span=> { #marks #body }) };
            *e = Expr::Verbatim(quote_spanned!(span=> #(#attrs)* #label for #pat in #over #body));
            return;
        }
        let (handle, label) = (frame.handle(span), frame.label(span));
        let (stop, after) = self.pass_on(&frame, span);
        *e = Expr::Verbatim(quote_spanned! {span=> #(#attrs)* {
            let (__pw_i, #handle) = __pw::each_with_exit(#over, #name);
            #label: for #pat in __pw_i { #marks #body #stop }
            #after
        }});
    }

    /// What stands at the end of a host loop's body and after it, so that an exit to a device loop further out ends it.
    fn pass_on(&mut self, frame: &LoopFrame, span: Span) -> (TokenStream, TokenStream) {
        if !frame.crossed {
            return Default::default();
        }
        let (handle, label) = (frame.handle(span), frame.label(span));
        let stop = quote_spanned!(span=> if #handle.passed() { break #label });
        let after =
            self.leave_region(span).map(|leave| quote_spanned!(span=> if #handle.passed() { #leave }));
        (stop, after.unwrap_or_default())
    }

    /// Rewrites the range of `for i in a..b` and `for i in (a..b).step_by(c)`, whose ends may be device values.
    fn range(&mut self, e: &mut Expr) {
        match e {
            Expr::Paren(p) => self.range(&mut p.expr),
            Expr::MethodCall(m) => self.range(&mut m.receiver),
            _ => {
                let Some(RangeEnds { start, end, inclusive, span }) = range_ends(e) else { return };
                self.visit_expr_mut(start);
                self.visit_expr_mut(end);
                self.used = true;
                let (start, end) = (unparenthesised(start), unparenthesised(end));
                let method = Ident::new(if inclusive { "range_inclusive" } else { "range" }, span);
                *e = Expr::Verbatim(quote_spanned!(span=> __pw::ends(#start, #end).#method()));
            }
        }
    }

    /// `while`.
    pub fn while_(&mut self, e: &mut Expr) {
        let Expr::While(w) = e else { return };
        if has_let(&w.cond) || is_host(&w.cond) {
            *e = self.host_while(w);
            return;
        }
        let span = w.while_token.span;
        self.used = true;
        self.body(&mut w.cond, TokenStream::new());
        let number = self.number();
        self.frames.push(Frame::Loop(LoopFrame::new(number, &w.label, true)));
        self.frames.push(Frame::Region(RegionFrame::body(number)));
        self.block(&mut w.body);
        let Some(Frame::Region(region)) = self.frames.pop() else { return };
        let Some(frame) = self.pop_loop() else { return };
        let (handle, label, condition) = (frame.handle(span), frame.label(span), operand(&w.cond));
        let (stop, after) = self.pass_on(&frame, span);
        let (body, attrs) = (&w.body, &w.attrs);
        let inner = region.used.then(|| region.label(span)).into_iter();
        *e = Expr::Verbatim(quote_spanned! {span=> #(#attrs)* {
            let mut #handle = __pw::begin_while();
            #label: loop {
                #handle.condition();
                if !#handle.test(#condition) { break #label }
                #(#inner:)* #body
                #stop
                if #handle.done() { break #label }
            }
            #after
        }});
    }

    /// A `while` that stays Rust's: its condition is one of the host.
    pub fn host_while(&mut self, w: &mut ExprWhile) -> Expr {
        let marks = self.chain_marks(&w.cond);
        self.host_condition(&mut w.cond);
        let number = self.number();
        self.frames.push(Frame::Loop(LoopFrame::new(number, &w.label, false)));
        self.block_with(&mut w.body, marks);
        let whole = replace(w, ExprWhile { attrs: vec![], ..w.clone() });
        let span = whole.while_token.span;
        self.finish_host_loop(Expr::While(whole), span)
    }

    /// A `for` that stays Rust's.
    pub fn host_for(&mut self, e: &mut Expr) {
        let Expr::ForLoop(f) = e else { return };
        self.visit_expr_mut(&mut f.expr);
        let marks = self.marks_for(&f.pat);
        let number = self.number();
        self.frames.push(Frame::Loop(LoopFrame::new(number, &f.label, false)));
        self.block_with(&mut f.body, marks);
        let span = f.for_token.span;
        let whole = replace(e, Expr::Verbatim(TokenStream::new()));
        *e = self.finish_host_loop(whole, span);
    }

    /// `loop`: the host's only; the device cannot run a loop without a condition.
    pub fn loop_(&mut self, e: &mut Expr) {
        let Expr::Loop(l) = e else { return };
        let number = self.number();
        self.frames.push(Frame::Loop(LoopFrame::new(number, &l.label, false)));
        self.block(&mut l.body);
        let span = l.loop_token.span;
        let whole = replace(e, Expr::Verbatim(TokenStream::new()));
        *e = self.finish_host_loop(whole, span);
    }

    /// `'a: { .. break 'a value; .. }`.
    pub fn labelled_block(&mut self, e: &mut Expr) {
        let Expr::Block(b) = e else { return };
        let number = self.number();
        let frame = LoopFrame { is_loop: false, ..LoopFrame::new(number, &b.label, false) };
        self.frames.push(Frame::Loop(frame));
        self.block(&mut b.block);
        let span = b.block.brace_token.span.join();
        let whole = replace(e, Expr::Verbatim(TokenStream::new()));
        *e = self.finish_host_loop(whole, span);
    }

    /// Gives a loop of the host its handle and label, when an exit needs them.
    fn finish_host_loop(&mut self, mut whole: Expr, span: Span) -> Expr {
        let Some(frame) = self.pop_loop() else { return whole };
        if !frame.used {
            return whole;
        }
        let (handle, name) = (frame.handle(span), frame.label(span));
        let (label, attrs) = match &mut whole {
            Expr::While(w) => (&mut w.label, &mut w.attrs),
            Expr::ForLoop(f) => (&mut f.label, &mut f.attrs),
            Expr::Loop(l) => (&mut l.label, &mut l.attrs),
            Expr::Block(b) => (&mut b.label, &mut b.attrs),
            _ => return whole,
        };
        let attrs = take(attrs);
        let begin = if frame.is_loop { "begin_loop" } else { "begin_block" };
        let begin = Ident::new(begin, span);
        label.get_or_insert(Label { name, colon_token: syn::Token![:](span) });
        Expr::Verbatim(quote_spanned! {span=> #(#attrs)* {
            let #handle = __pw::#begin();
            #whole
        }})
    }

    /// `return`: not out of a region of the device.
    pub fn return_(&mut self, e: &mut Expr) {
        let Expr::Return(r) = e else { return };
        if let Some(value) = &mut r.expr {
            self.visit_expr_mut(value);
        }
        let span = r.return_token.span;
        self.used = true;
        self.entry.used = true;
        let entry = format_ident!("{}", self.entry.name, span = span);
        self.checks.push(quote_spanned!(span=> __pw::leave(#entry);));
    }
}
