//! Kernels with far channels.

use peerwarp_codegen::dsl::prelude::*;

use super::*;

/// A row for the next rank, which may be on another machine.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "mail", kernel = mail, args = MailArgs, warps = warps)]
struct Mail {
    #[key(short = "r", range = 2..=8, ranks)]
    ranks: u32,
    #[tune(short = "w", values = [1])]
    warps: u32,
}

impl Legal for Mail {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Mail)]
struct MailArgs {
    #[input]
    #[len(|_| 64)]
    x: Ptr<f32>,
    #[output]
    #[len(|_| 64)]
    out: Ptr<f32>,
    #[channel(|c| ChannelShape::new(Transport::Far, c.ranks, Slots::BySender(1)))]
    #[len(|_| 64)]
    rows: Channel<f32>,
    epoch: EpochWord,
}

#[kernel]
fn mail(c: &Mail, a: &MailArgs) {
    let rows = a.rows.open(a.epoch.begin());
    role("send", 1, |_| {
        let row = rows.to(Peers::rank((rank() + 1) % c.ranks)).slot(0);
        row.put(0, a.x.load(0, 64));
        row.done();
        rows.settle();
    });
    role("receive", 1, |_| {
        let row = rows.from((rank() + c.ranks - 1) % c.ranks).wait(1).slot(0);
        a.out.store(0, row.load(0, 64));
    });
    rows.credits();
}

#[test]
fn a_world_without_an_engine_refuses_them() {
    let machine = Machine::default();
    let spec = LaunchSpec::new("mail", Mail { ranks: 2, warps: 1 }.into_variant());
    let said = Operation::new(&world(&machine), &[spec], &Uncompiled).unwrap_err().to_string();
    assert!(said.starts_with("parameter rows of mail = a far channel: channels within a machine"), "{said}");
}
