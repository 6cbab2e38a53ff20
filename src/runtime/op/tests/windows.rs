//! Windows: what of a launch's memory peers can reach, and what is refused.

use peerwarp_codegen::family::Family;

use super::*;
use crate::runtime::RuntimeError;

/// Adds up what all ranks have, in place.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "total", kernel = total, args = TotalArgs, warps = warps)]
struct Total {
    #[key(short = "n", range = 1..=4096)]
    elements: u32,
    #[key(short = "r", range = 2..=8, ranks)]
    ranks: u32,
    #[tune(short = "w", values = [4])]
    warps: u32,
}

impl Legal for Total {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Total)]
struct TotalArgs {
    /// What is added up.
    #[input]
    #[len(|c| u64::from(c.elements))]
    x: Window<f32>,
    #[output]
    #[len(|c| u64::from(c.elements))]
    out: Ptr<f32>,
    #[len(|c| u64::from(4 * c.ranks))]
    ready: Flags,
    epoch: EpochWord,
}

#[kernel]
fn total(c: &Total, a: &TotalArgs) {
    let epoch = a.epoch.begin();
    let flags = epoch.parity() * (2 * c.ranks);
    role("all", 1, |_| {
        a.x.signal(Peers::all(), &a.ready, flags + rank(), epoch);
        let mut sum = splat(0f32, c.elements);
        for peer in 0..c.ranks {
            let got = a.ready.from(peer).wait(flags + peer, epoch);
            sum = sum + a.x.of(peer).load(&got, 0, c.elements);
        }
        a.out.store(0, sum);
        // The caller may write its part again once all others have read it.
        a.x.signal(Peers::all(), &a.ready, flags + c.ranks + rank(), epoch);
        let _ = a.ready.wait_all(flags + c.ranks, c.ranks, 1, epoch);
    });
}

fn config() -> Total {
    Total::with_defaults(&TotalKey { elements: 64, ranks: 2 }).unwrap()
}

/// The pointers of all ranks that a launch was given.
fn pointers(launched: &Launched) -> Vec<u64> {
    use crate::runtime::image::Images as _;
    let image = Uncompiled.image(&*config().into_variant(), "cuda:sm_90a".parse().unwrap()).unwrap();
    let field = image.args.fields.iter().find(|f| f.name == "x").unwrap();
    launched.args[field.offset as usize / 8..][..field.bytes as usize / 8].to_vec()
}

fn launch(op: &mut Op<Total>, x: &dyn Readable) -> Result<(), RuntimeError> {
    let mut out = tensor(0x3000);
    op.rank(0).launch(stream(0), TotalLaunch { x, out: &mut out })
}

#[test]
fn a_window_is_where_it_is_on_every_rank() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut op = Op::new(&world, &config(), &Uncompiled).unwrap();
    let other = world.symmetric::<f32>(64).unwrap();
    let parts = world.symmetric::<f32>(256).unwrap();
    assert_eq!((parts[1].rank(), parts[1].len(), parts.len()), (1, 256, 2));
    launch(&mut op, &parts[0]).unwrap();
    launch(&mut op, &other[0]).unwrap();
    // A tensor of another library in the same memory, 128 elements on.
    // SAFETY: nothing runs on mocks.
    launch(&mut op, &unsafe { RawTensor::new(parts[0].buffer().ptr() + 512, 256, 0) }).unwrap();
    let of =
        |parts: &[SymmetricPart<f32>], at| parts.iter().map(|p| p.buffer().ptr() + at).collect::<Vec<_>>();
    let launches = machine.launches.lock().unwrap().clone();
    let given: Vec<_> = launches.iter().map(pointers).collect();
    assert_eq!(given, [of(&parts, 0), of(&other, 0), of(&parts, 512)]);
}

#[test]
fn memory_that_peers_cannot_reach_is_no_window() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut op = Op::new(&world, &config(), &Uncompiled).unwrap();
    let parts = world.symmetric::<f32>(96).unwrap();
    let ptr = parts[0].buffer().ptr();
    let refused = |op: &mut Op<Total>, x: &dyn Readable| launch(op, x).unwrap_err().to_string();
    let allowed = "256 bytes of a `SymmetricPart` of this world, as peers read it";
    assert_eq!(refused(&mut op, &tensor(0x1000)), format!("memory of x = 0x1000: {allowed}"));
    // Half of it is beyond the end.
    // SAFETY: nothing runs on mocks.
    let beyond = unsafe { RawTensor::new(ptr + 256, 256, 0) };
    assert_eq!(refused(&mut op, &beyond), format!("memory of x = {:#x}: {allowed}", ptr + 256));
    // Too short, of another type, of another rank's GPU, of another world.
    let short = world.symmetric::<f32>(63).unwrap();
    assert!(refused(&mut op, &short[0]).starts_with("bytes of x = 252: 256 or more"));
    let words = world.symmetric::<u32>(64).unwrap();
    assert!(refused(&mut op, &words[0]).starts_with("elements of x = U32: F32"));
    assert!(refused(&mut op, &parts[1]).starts_with("GPU of x = 1: 0"));
    let elsewhere = super::world(&machine).symmetric::<f32>(64).unwrap();
    assert!(refused(&mut op, &elsewhere[0]).ends_with(allowed));
    // What has been freed.
    // SAFETY: nothing runs on mocks.
    let stale = unsafe { RawTensor::new(ptr, 256, 0) };
    drop(parts);
    assert_eq!(refused(&mut op, &stale), format!("memory of x = {ptr:#x}: {allowed}"));
    assert_eq!(machine.launches.lock().unwrap().len(), 0);
}

#[test]
fn addresses_of_raw_launches_are_checked_too() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut op =
        Operation::new(&world, &[LaunchSpec::new("total", config().into_variant())], &Uncompiled).unwrap();
    let parts = world.symmetric::<f32>(64).unwrap();
    let rank = &mut op.ranks_mut()[1];
    let own = parts[1].buffer().ptr();
    // SAFETY: nothing runs on mocks.
    let mut raw = |x| unsafe { rank.launch_raw(0, &[x, 0x3000], RawStream::from_raw(0xbeef)) };
    raw(own).unwrap();
    assert!(
        raw(parts[0].buffer().ptr()).unwrap_err().to_string().starts_with("memory of x = "),
        "another rank's"
    );
    let launches = machine.launches.lock().unwrap().clone();
    assert_eq!(pointers(&launches[0]), [parts[0].buffer().ptr(), own]);
}

#[test]
fn launches_with_a_part_are_on_one_stream() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut ops = [(); 3].map(|()| Op::new(&world, &config(), &Uncompiled).unwrap());
    let parts = world.symmetric::<f32>(64).unwrap();
    launch(&mut ops[0], &parts[0]).unwrap();
    launch(&mut ops[1], &parts[0]).unwrap();
    let other = Stream::new(ops[2].ranks()[0].gpu()).unwrap();
    let mut out = tensor(0x3000);
    let said = ops[2].rank(0).launch(&other, TotalLaunch { x: &parts[0], out: &mut out }).unwrap_err();
    assert!(said.to_string().ends_with(": that of the earlier launches with this part, of rank 0"), "{said}");
    assert_eq!(machine.launches.lock().unwrap().len(), 2);
    // SAFETY: nothing runs on mocks.
    unsafe { ops[2].rank(0).capture(&other, TotalLaunch { x: &parts[0], out: &mut out }).unwrap() };
    let pointers = machine.launches.lock().unwrap().last().map(pointers).unwrap();
    assert_eq!(pointers, [parts[0].buffer().ptr(), parts[1].buffer().ptr()]);
}

#[test]
fn the_last_part_frees_the_memory_after_all_has_ended() {
    let machine = Machine::default();
    let world = world(&machine);
    let before = machine.alive();
    let mut parts = world.symmetric::<f32>(64).unwrap();
    parts[0].buffer().write(0, &[1.0f32; 64]).unwrap();
    assert_eq!(parts[0].buffer().read::<f32>(4, 1).unwrap(), [1.0]);
    drop(parts.remove(0));
    assert_eq!(machine.alive(), before + 2, "the other rank still has its own, and may read this one");
    drop(parts);
    assert_eq!(machine.alive(), before);
    // Kernels may still run.
    let parts = world.symmetric::<f32>(64).unwrap();
    machine.fail("synchronize", 0);
    drop(parts);
    machine.fail("synchronize", u32::MAX);
    assert_eq!(machine.alive(), before + 2);
    machine.leaves(2);
    let said = world.symmetric::<f32>(0).unwrap_err().to_string();
    assert!(said.starts_with("elements of symmetric memory = 0: 1 to "), "{said}");
}
