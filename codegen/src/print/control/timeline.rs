//! Statements that record a timeline. The rest of the printer knows [`Emitter::timed`] and the few functions below it; without a
//! timeline they write nothing.

use std::collections::HashSet;

use crate::ir::{OpId, Region, Signal};
use crate::print::emit::Emitter;
use crate::print::facts::{
    Sites,
    timeline::{puts, recorded},
};
use crate::print::text::{Prim, PrintError, Used};

impl Emitter<'_, '_> {
    /// Writes an operation, and around it what records it.
    pub fn timed(
        &mut self,
        id: OpId,
        write: impl FnOnce(&mut Self) -> Result<(), PrintError>,
    ) -> Result<(), PrintError> {
        let Some(sites) = &self.f.timeline else { return write(self) };
        let Some(&site) = sites.ops.get(&id) else { return write(self) };
        self.flush()?;
        let group = self.group.name;
        self.w.gap();
        self.w.line(&format!("timeline.begin({group});"));
        self.w.close_up();
        write(self)?;
        let kind = &self.f.p.kernel.op(id).kind;
        let Some((index, peers)) = recorded(self.f.p.kernel, kind).and_then(|r| r.words) else {
            return Ok(());
        };
        let (index, peers) = (self.scalar(index)?, self.scalar(peers)?);
        let rest = |site: usize| format!("{}, {}, {}", sites.names[site], index.plain(), peers.plain());
        self.w.line(&format!("timeline.end({group}, {});", rest(site)));
        if let Some(Signal { parcel, .. }) = kind.signal()
            && let Some(opened) = self.opened.get(parcel)
        {
            let line = format!("timeline.sent({group}, {opened}, {});", rest(sites.parcels[parcel]));
            self.w.line(&line);
        }
        Ok(())
    }

    /// Notes when a parcel's first put begins. Whatever waits to be written comes after it, as do its loads.
    pub fn note_put(&mut self, id: OpId) {
        let Some((parcel, _)) = self.f.p.kernel.op(id).kind.puts() else { return };
        let Some(opened) = self.opened.get(&parcel) else { return };
        let p = &self.f.p;
        let earlier = |&put: &OpId| put < id && p.ancestor_beside(id, put).is_some();
        if !puts(p, parcel).iter().any(earlier) {
            let line = format!("timeline.open({}, {opened});", self.group.name);
            self.w.line(&line);
        }
    }

    /// Declares when the parcels of a region were opened, those of the groups that run it.
    pub fn declare_opened(&mut self, region: &Region) {
        let Some(sites) = &self.f.timeline else { return };
        let (p, inside) = (&self.f.p, self.group.name == "group");
        let mut seen = HashSet::new();
        let mut parcels = vec![];
        p.kernel.walk(region, &mut |id, op| {
            if let Some(&Signal { parcel, flag, .. }) = op.kind.signal()
                && sites.parcels.contains_key(&parcel)
                && p.split(id).is_some() == inside
                && seen.insert(parcel)
            {
                parcels.push((parcel, flag));
            }
        });
        for (parcel, flag) in parcels {
            let name = self.names.fresh(&format!("{}_opened", p.kernel.params[flag.index()].name));
            self.w.line_with(&format!("u64 {name} = 0;"), "when the first put was about to begin");
            self.opened.insert(parcel, name);
        }
    }

    /// A group begins: its parcels, and when it began.
    pub fn begin_group(&mut self, body: &Region) -> String {
        if self.f.timeline.is_none() {
            return String::new();
        }
        let began = self.names.fresh("began");
        self.w.line(&format!("u64 {began} = 0;"));
        self.w.line(&format!("timeline.open({}, {began});", self.group.name));
        self.declare_opened(body);
        began
    }

    /// It ends.
    pub fn end_group(&mut self, split: OpId, began: &str) {
        if let Some(sites) = &self.f.timeline {
            let group = self.group.name;
            let name = &sites.names[sites.ops[&split]];
            self.w.line(&format!("timeline.sent({group}, {began}, {name}, {group}.number, 0);"));
        }
    }

    /// What a role has to be given, between its other parameters.
    pub fn timeline_parameter(&self) -> &'static str {
        if self.f.timeline.is_some() { ", timeline" } else { "" }
    }

    /// The kernel begins.
    pub fn begin_timeline(&mut self) {
        if self.f.timeline.is_some() {
            self.used.add(Prim::Timeline);
            self.w.line("Timeline timeline(args);");
        }
    }

    /// A role has ended. What a warp did is recorded for the role that it began as, which `nth` tells where others go on as this.
    pub fn end_role(&mut self, role: usize, nth: &str) {
        let Some(sites) = &self.f.timeline else { return };
        let kernel = self.f.p.kernel;
        let site = |role: usize| sites.names[sites.roles[role]].as_str();
        let others: Vec<usize> = kernel.joining(role).collect();
        let mut began = others.last().map_or(site(role), |&last| site(last)).to_string();
        for (at, _) in others.iter().enumerate().rev() {
            let before = if at == 0 { role } else { others[at - 1] };
            let first = kernel.goes_on(others[at]).map_or(0, |(_, first)| first);
            began = format!("{nth} < {first} ? {} : {began}", site(before));
        }
        let line = format!("timeline.close({began});");
        self.w.line(&line);
    }
}

/// What the argument struct needs to be declared.
pub(crate) fn use_types(sites: Option<&Sites>, used: &mut Used) {
    if sites.is_some() {
        used.add(Prim::TimelineEvent);
    }
}
