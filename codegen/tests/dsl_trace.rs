//! Tracing without `#[kernel]`: what the DSL's functions and operators put into the IR.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

fn traced(body: impl FnOnce(&mut Binder)) -> Kernel {
    trace(TraceMeta::new("test", 8, 32, 4), body).unwrap()
}

#[test]
fn a_whole_exchange() {
    let k = traced(|p| {
        let x = p.arg::<Ptr<u32>>("x", 256);
        let inbox = p.arg::<Sym<u32>>("inbox", 8 * 256);
        let flag = p.arg::<Flags>("flag", 8);
        let word = p.arg::<EpochWord>("epoch", 1);
        let out = p.arg::<Ptr<u32>>("out", 8 * 256);
        let epoch = word.begin();
        role("send", 1, |_| {
            let mut row = send_to(Peers::all());
            row.put(&inbox, rank() * 256, x.load(0, 256));
            row.signal(&flag, rank(), epoch);
        });
        role("recv", 2, |b| {
            b.split(2, |g| {
                let r = g.index();
                let got = flag.from(r).wait(r, epoch);
                let row = inbox.load(&got, r * 256, 256);
                out.store(r * 256, row + 2 * row);
            });
        });
    });
    assert_eq!(k.grid_blocks(), 3);
    println!("{k:#?}");
}
