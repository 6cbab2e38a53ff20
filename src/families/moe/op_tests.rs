use std::time::Duration;

use peerwarp_codegen::dsl::Binding;
use peerwarp_codegen::family::{CudaArch, DynConfig, Family, Target};
use peerwarp_codegen::ir::ParamKind;

use super::*;
use crate::families::moe::kernels::{Hook, Protocol};
use crate::families::moe::{MoeShape, RowDtype};
use crate::runtime::WorldOptions;
use crate::runtime::gpu::LaunchConfig;
use crate::runtime::handles::LoadedKernel;
use crate::runtime::mock::{Launched, Machine, MockGpu, Uncompiled};
use crate::runtime::op::buffers;

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };

const TOKENS: Tokens = Tokens { x: 0x10, x_scale: 0x20, rows_there: 3, n: 0x30, ids: 0x40, weights: 0x50 };

fn world(machine: &Machine) -> Arc<World> {
    let options = WorldOptions { wait_budget: Duration::from_millis(7), ..WorldOptions::default() };
    Arc::new(World::of_gpus(&MockGpu::all(machine, 2), &options).unwrap())
}

fn tuning() -> MoeTuning {
    MoeTuning::defaults_with(&SHAPE, Hook::None, Layout::ExpertMajor).unwrap()
}

/// The 8 bytes of a member in what was launched.
fn member(launched: &Launched, variant: &dyn DynConfig, name: &str, at: usize) -> u64 {
    let image = Uncompiled.image(variant, Target::Cuda(CudaArch::Sm90a)).unwrap();
    let field = image.args.fields.iter().find(|f| f.name == name).unwrap();
    launched.args[field.offset as usize / 8 + at]
}

#[test]
fn blocks_have_sms_alone_unless_they_are_to_share_them() {
    let shared_bytes = |share_sms| {
        let machine = Machine::default();
        let options = WorldOptions { share_sms, ..WorldOptions::default() };
        let world = Arc::new(World::of_gpus(&MockGpu::all(&machine, 2), &options).unwrap());
        let mut op = MoeAllToAll::new(&world, &tuning(), &Uncompiled).unwrap();
        // SAFETY: nothing runs on mocks.
        let _ = unsafe { op.ranks_mut()[0].dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap() };
        machine.launches.lock().unwrap()[0].config.shared_bytes
    };
    let image =
        Uncompiled.image(&*tuning().dispatch().into_variant(), Target::Cuda(CudaArch::Sm90a)).unwrap();
    let (needed, alone) = (image.launch.shared_bytes, image.launch.exclusive_sm_bytes.unwrap());
    assert!(needed < alone, "{needed} {alone}");
    assert_eq!((shared_bytes(false), shared_bytes(true)), (alone, needed));
}

#[test]
fn ranks_that_share_a_gpu_have_room_for_the_blocks_of_all_of_them() {
    let machine = Machine::default();
    let gpu = MockGpu::all(&machine, 1).remove(0);
    let options = WorldOptions { share_gpus: true, ..WorldOptions::default() };
    let world = Arc::new(World::of_gpus(&[Arc::clone(&gpu), gpu], &options).unwrap());
    let image =
        Uncompiled.image(&*tuning().dispatch().into_variant(), Target::Cuda(CudaArch::Sm90a)).unwrap();
    assert!(image.launch.overlaps_previous && image.launch.exclusive_sm_bytes.is_some());
    let op = |per_sm| {
        machine.per_sm.store(per_sm, std::sync::atomic::Ordering::Relaxed);
        MoeAllToAll::new(&world, &tuning(), &Uncompiled)
    };
    let mut first = op(2).unwrap();
    // SAFETY: nothing runs on mocks.
    let _ = unsafe { first.ranks_mut()[1].dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap() };
    let config = machine.launches.lock().unwrap()[0].config;
    assert_eq!((config.cooperative, config.overlaps_previous), (false, false));
    assert_eq!(config.shared_bytes, image.launch.shared_bytes);
    let mut large = tuning();
    (large.plan.dispatch.send_blocks, large.plan.dispatch.recv_blocks) = (64, 64);
    machine.per_sm.store(1, std::sync::atomic::Ordering::Relaxed);
    let said = MoeAllToAll::new(&world, &large, &Uncompiled).unwrap_err().to_string();
    assert!(
        said.starts_with(
            "2 launches may be under way on GPU 0, which holds 66 blocks for each (moe_dispatch"
        ),
        "{said}"
    );
    // With two on an SM there is room, but not beside a kernel of which an SM holds one.
    let narrow = op(1).unwrap();
    machine.per_sm.store(2, std::sync::atomic::Ordering::Relaxed);
    let said = MoeAllToAll::new(&world, &large, &Uncompiled).unwrap_err().to_string();
    assert!(said.contains("which holds 66 blocks for each"), "{said}");
    drop(narrow);
    MoeAllToAll::new(&world, &large, &Uncompiled).unwrap();
    // Two launches of a rank share its GPU alike.
    machine.per_sm.store(1, std::sync::atomic::Ordering::Relaxed);
    let options = WorldOptions { launches_at_once: 2, ..WorldOptions::default() };
    let world = Arc::new(World::of_gpus(&MockGpu::all(&machine, 2), &options).unwrap());
    let said = MoeAllToAll::new(&world, &large, &Uncompiled).unwrap_err().to_string();
    assert!(
        said.starts_with("2 launches may be under way on GPU 0, which holds 66 blocks for each"),
        "{said}"
    );
    let ops = [(); 2].map(|()| MoeAllToAll::new(&world, &large.clone().within(66), &Uncompiled).unwrap());
    assert_eq!((ops.len(), world.blocks_per_launch()), (2, Some(66)));
}

#[test]
fn launches_get_the_buffers_of_their_rank_and_nothing_is_left() {
    let machine = Machine::default();
    let (world, tuning) = (world(&machine), tuning());
    let mut op = MoeAllToAll::new(&world, &tuning, &Uncompiled).unwrap();
    for rank in op.ranks_mut() {
        // SAFETY: nothing runs on mocks.
        unsafe {
            let routed = rank.dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap();
            rank.combine_raw(routed, 0x60, 0x70, RawStream::DEFAULT).unwrap();
        }
    }
    let launches = machine.launches.lock().unwrap().clone();
    assert_eq!(launches.iter().map(|l| l.gpu).collect::<Vec<_>>(), [0, 0, 1, 1]);
    let (dispatch, combine) = (tuning.dispatch().into_variant(), tuning.combine().into_variant());
    for (rank, pair) in launches.chunks(2).enumerate() {
        let d = |name, at| member(&pair[0], &*dispatch, name, at);
        let c = |name, at| member(&pair[1], &*combine, name, at);
        // Rows in bf16 have no scales.
        assert_eq!(["x", "n", "ids", "weights"].map(|n| d(n, 0)), [0x10, 0x30, 0x40, 0x50]);
        assert_eq!(["n", "ids", "weights", "y", "out"].map(|n| c(n, 0)), [0x30, 0x40, 0x50, 0x60, 0x70]);
        assert_eq!(["rows_there"; 2].map(|name| d(name, 0) as u32), [3; 2]);
        assert_eq!(c("rows_there", 0) as u32, 3);
        for name in ["n_from", "pos", "weight_from"] {
            assert_eq!(d(name, 0), c(name, 0), "{name}");
            assert_eq!(d(name, 0), op.ranks()[rank].buffer(name).unwrap().0, "{name}");
        }
        assert_ne!(d("epoch", 0), c("epoch", 0));
        assert_eq!((d("wait_budget_ns", 0), d("rank", 0) as u32), (7_000_000, rank as u32));
        assert_eq!([d("status", 0), d("status", 1)], [c("status", 0), c("status", 1)]);
        // Symmetric buffers: every rank sees the same ones.
        let other = |name, at| member(&launches[2 - 2 * rank], &*dispatch, name, at);
        let shared = [ParamKind::Symmetric, ParamKind::Flags, ParamKind::Packets, ParamKind::Ll];
        let params = dispatch.params();
        for name in params.iter().filter(|p| shared.contains(&p.kind)).map(|p| p.name.as_str()) {
            assert_eq!([d(name, 0), d(name, 1)], [other(name, 0), other(name, 1)], "{name}");
            assert_ne!(d(name, 0), d(name, 1), "{name}");
        }
        assert!(pair.iter().all(|l| l.config.cooperative && l.config.grid > 0));
    }
    drop((op, world));
    assert_eq!(machine.alive(), 0);
}

/// The host may know how many tokens there are: then no word on the GPU says so, and without tokens there is no memory.
#[test]
fn a_launch_has_as_many_rows_as_its_number_says() {
    let machine = Machine::default();
    let (world, tuning) = (world(&machine), tuning());
    let mut op = MoeAllToAll::new(&world, &tuning, &Uncompiled).unwrap();
    let rank = &mut op.ranks_mut()[0];
    let all = rank.all_rows.ptr();
    assert_eq!(rank.all_rows.read::<u32>(0, 1).unwrap(), [u32::MAX]);
    let none = Tokens { x: 0, x_scale: 0, rows_there: 0, n: 0, ids: 0, weights: 0 };
    // SAFETY: nothing runs on mocks.
    unsafe {
        let routed = rank.dispatch_raw(&none, RawStream::DEFAULT).unwrap();
        rank.combine_raw(routed, 0x60, 0, RawStream::DEFAULT).unwrap();
        let said = rank.dispatch_raw(&Tokens { rows_there: 5, ..TOKENS }, RawStream::DEFAULT).unwrap_err();
        assert_eq!(said.to_string(), "rows_there = 5: at most 4");
    }
    let launches = machine.launches.lock().unwrap().clone();
    let variants = [tuning.dispatch().into_variant(), tuning.combine().into_variant()];
    assert_eq!(launches.len(), 2);
    for (launched, variant) in launches.iter().zip(&variants) {
        let [rows, n] = ["rows_there", "n"].map(|name| member(launched, &**variant, name, 0));
        assert_eq!((rows as u32, n), (0, all));
    }
}

#[test]
fn the_empty_id_and_the_wait_budget_change_between_calls() {
    let machine = Machine::default();
    let (world, tuning) = (world(&machine), tuning());
    let mut op = MoeAllToAll::new(&world, &tuning, &Uncompiled).unwrap();
    let rank = &mut op.ranks_mut()[0];
    let said = |done: Result<(), RuntimeError>| done.unwrap_err().to_string();
    assert_eq!(said(rank.set_empty_id(7)), "empty_id = 7: negative, or 8 or more: no expert");
    let none = said(rank.set_wait_budget(Duration::ZERO));
    assert!(none.starts_with("wait_budget = 0ns: 1 ns to "), "{none}");
    assert!(said(rank.set_wait_budget(Duration::MAX)).starts_with("wait_budget = "));
    // SAFETY: nothing runs on mocks.
    let round = |rank: &mut MoeRank| unsafe {
        let routed = rank.dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap();
        rank.combine_raw(routed, 0x60, 0x70, RawStream::DEFAULT).unwrap();
    };
    round(rank);
    rank.set_empty_id(8).unwrap();
    rank.set_wait_budget(Duration::from_secs(60)).unwrap();
    round(rank);
    // The old name, for one release.
    #[expect(deprecated)]
    rank.set_nobody(9).unwrap();
    round(rank);
    let launches = machine.launches.lock().unwrap().clone();
    let variants = [tuning.dispatch().into_variant(), tuning.combine().into_variant()];
    let of = |name: &str| -> Vec<u64> {
        launches.iter().zip(variants.iter().cycle()).map(|(l, v)| member(l, &**v, name, 0)).collect()
    };
    let ids: Vec<i32> = of("empty_id").iter().map(|word| *word as i32).collect();
    assert_eq!(ids, [-1, -1, 8, 8, 9, 9]);
    assert_eq!(
        of("wait_budget_ns"),
        [7_000_000, 7_000_000, 60_000_000_000, 60_000_000_000, 60_000_000_000, 60_000_000_000]
    );
}

#[test]
fn rows_that_arrive_in_their_places_are_the_rank_s_own_inbox() {
    let machine = Machine::default();
    let tuning = tuning().with_protocol(Protocol::Flags).with_layout(Layout::RankMajor);
    assert!(tuning.dispatch().in_place());
    let mut op = MoeAllToAll::new(&world(&machine), &tuning, &Uncompiled).unwrap();
    for rank in op.ranks_mut() {
        // SAFETY: nothing runs on mocks.
        let _routed = unsafe { rank.dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap() };
    }
    let launches = machine.launches.lock().unwrap().clone();
    let dispatch = tuning.dispatch().into_variant();
    for (at, (rank, launch)) in op.ranks().iter().zip(&launches).enumerate() {
        let rows = rank.buffer("rows").unwrap();
        assert_eq!(rows.0, member(launch, &*dispatch, "inbox", at));
        assert_eq!(rows, rank.buffer("inbox").unwrap());
        assert_eq!(
            rows.1,
            rank.shape().row_bytes() as u64 * u64::from(rank.shape().ranks * rank.shape().tokens)
        );
        assert!(rank.buffer("row_scale").is_err(), "rows in bf16 have no scales");
    }
}

#[test]
fn what_lasts_from_round_to_round_is_distinct_from_what_does_not() {
    for (protocol, payload, lasting) in [
        (Protocol::Flags, vec!["inbox", "rec_n"], vec![("row_flag", 0), ("rec_flag", 0)]),
        (Protocol::Packets, vec![], vec![("inbox_packets", 0xff), ("ll_n", 0), ("ready", 0)]),
    ] {
        let machine = Machine::default();
        let (world, tuning) = (world(&machine), tuning().with_protocol(protocol));
        let mut op = MoeAllToAll::new(&world, &tuning, &Uncompiled).unwrap();
        for (at, rank) in op.ranks_mut().iter_mut().enumerate() {
            rank.start_after(77).unwrap();
            rank.fill_payload(0xee, RawStream::DEFAULT).unwrap();
            // SAFETY: nothing runs on mocks.
            unsafe {
                let routed = rank.dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap();
                rank.combine_raw(routed, 0x60, 0x70, RawStream::DEFAULT).unwrap();
            }
            let launches = machine.launches.lock().unwrap().split_off(0);
            let variants = [tuning.dispatch().into_variant(), tuning.combine().into_variant()];
            let word = |ptr: u64| {
                let mut bytes = [0; 4];
                // SAFETY: the mock refuses what is not there.
                unsafe { world.members()[at].gpu.download(ptr, &mut bytes).unwrap() };
                u32::from_ne_bytes(bytes)
            };
            for (launched, variant) in launches.iter().zip(&variants) {
                assert_eq!(word(member(launched, &**variant, "epoch", 0)), 77);
            }
            // Of symmetric buffers only a rank's own.
            for (name, byte) in payload.iter().map(|name| (*name, 0xee)).chain(lasting.iter().copied()) {
                let [own, other] = [at, 1 - at].map(|of| member(&launches[0], &*variants[0], name, of));
                assert_eq!(word(own), u32::from_ne_bytes([byte; 4]), "{name}");
                let other_byte = if byte == 0xee && at == 0 { 0 } else { byte };
                assert_eq!(word(other), u32::from_ne_bytes([other_byte; 4]), "{name}");
            }
            for name in ["rows", "expert_start", "pos"] {
                assert_eq!(word(rank.buffer(name).unwrap().0), 0xeeee_eeee, "{name}");
            }
        }
    }
}

#[test]
fn combine_takes_its_own_dispatch_only() {
    let machine = Machine::default();
    let mut op = MoeAllToAll::new(&world(&machine), &tuning(), &Uncompiled).unwrap();
    let rank = &mut op.ranks_mut()[1];
    // SAFETY: nothing runs on mocks.
    unsafe {
        let first = rank.dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap();
        let second = rank.dispatch_raw(&TOKENS, RawStream::DEFAULT).unwrap();
        let said = rank.combine_raw(first, 1, 2, RawStream::DEFAULT).unwrap_err().to_string();
        assert_eq!(said, "routed = 1: that of the last dispatch of rank 1, 2");
        rank.combine_raw(second, 1, 2, RawStream::DEFAULT).unwrap();
        let said = rank.dispatch_send_raw(&TOKENS, RawStream::DEFAULT).unwrap_err().to_string();
        assert!(said.starts_with("split = false: true in the tuning"), "{said}");
    }
}

#[test]
fn dispatches_of_other_operations_and_ranks_are_refused() {
    let machine = Machine::default();
    let world = world(&machine);
    let split = tuning().with_split(true);
    let [mut op, mut other] = [(); 2].map(|()| MoeAllToAll::new(&world, &split, &Uncompiled).unwrap());
    let on = RawStream::DEFAULT;
    // SAFETY: nothing runs on mocks.
    unsafe {
        let _last = op.ranks_mut()[0].dispatch_raw(&TOKENS, on).unwrap();
        let refused = |said: RuntimeError, field: &str, value: &str| {
            let allowed = "that of the last dispatch of rank 0, 1";
            assert_eq!(said.to_string(), format!("{field} = {value}: {allowed}"));
        };
        let stranger = other.ranks_mut()[0].dispatch_raw(&TOKENS, on).unwrap();
        let said = op.ranks_mut()[0].combine_raw(stranger, 1, 2, on).unwrap_err();
        refused(said, "routed", "1 of rank 0 of another operation");
        let neighbour = op.ranks_mut()[1].dispatch_raw(&TOKENS, on).unwrap();
        let said = op.ranks_mut()[0].combine_send_raw(neighbour, 1, on).unwrap_err();
        refused(said, "routed", "1 of rank 1");
        let sending = other.ranks_mut()[0].dispatch_send_raw(&TOKENS, on).unwrap();
        let said = op.ranks_mut()[0].dispatch_receive_raw(sending, on).unwrap_err();
        refused(said, "sending", "2 of rank 0 of another operation");
        let routed = other.ranks_mut()[0].dispatch_raw(&TOKENS, on).unwrap();
        let returning = other.ranks_mut()[0].combine_send_raw(routed, 1, on).unwrap();
        let said = op.ranks_mut()[0].combine_receive_raw(returning, 2, on).unwrap_err();
        refused(said, "returning", "3 of rank 0 of another operation");
    }
    let launched = machine.launches.lock().unwrap().len();
    assert_eq!(launched, 2 * 4 + 2, "nothing that is refused is launched");
}

#[test]
fn a_dispatch_of_which_one_half_was_launched_is_the_last_one() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut op = MoeAllToAll::new(&world, &tuning().with_split(true), &Uncompiled).unwrap();
    let (rank, on) = (&mut op.ranks_mut()[0], RawStream::DEFAULT);
    // SAFETY: nothing runs on mocks.
    unsafe {
        let whole = rank.dispatch_raw(&TOKENS, on).unwrap();
        machine.fail("launch", 1);
        assert!(rank.dispatch_raw(&TOKENS, on).is_err());
        let said = rank.combine_raw(whole, 1, 2, on).unwrap_err().to_string();
        assert_eq!(said, "routed = 1: that of the last dispatch of rank 0, 2");
    }
}

#[test]
fn a_dispatch_does_not_outlive_a_reset_of_the_world() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut op = MoeAllToAll::new(&world, &tuning(), &Uncompiled).unwrap();
    let (rank, on) = (&mut op.ranks_mut()[0], RawStream::DEFAULT);
    // SAFETY: nothing runs on mocks.
    unsafe {
        let before = rank.dispatch_raw(&TOKENS, on).unwrap();
        world.reset().unwrap();
        let said = rank.combine_raw(before, 1, 2, on).unwrap_err().to_string();
        assert_eq!(said, "routed = 1, from before the world was reset: that of a dispatch after it");
        let after = rank.dispatch_raw(&TOKENS, on).unwrap();
        rank.combine_raw(after, 1, 2, on).unwrap();
    }
}

#[test]
fn halves_are_launched_one_at_a_time() {
    let machine = Machine::default();
    let tuning = tuning().with_split(true);
    let mut op = MoeAllToAll::new(&world(&machine), &tuning, &Uncompiled).unwrap();
    let rank = &mut op.ranks_mut()[0];
    let launched = || machine.launches.lock().unwrap().len();
    // SAFETY: nothing runs on mocks.
    unsafe {
        let sending = rank.dispatch_send_raw(&TOKENS, RawStream::DEFAULT).unwrap();
        assert_eq!(launched(), 1);
        let routed = rank.dispatch_receive_raw(sending, RawStream::DEFAULT).unwrap();
        assert_eq!(launched(), 2);
        let returning = rank.combine_send_raw(routed, 0x60, RawStream::DEFAULT).unwrap();
        assert_eq!(launched(), 3);
        rank.combine_receive_raw(returning, 0x70, RawStream::DEFAULT).unwrap();
    }
    let launches = machine.launches.lock().unwrap().clone();
    let [dispatch, combine] = [tuning.dispatch_launches().len(), tuning.combine_launches().len()];
    assert_eq!((launches.len(), dispatch, combine), (4, 2, 2));
    let receive = tuning.combine_launches()[1].clone().into_variant();
    assert_eq!(member(&launches[3], &*receive, "out", 0), 0x70);
}

#[test]
fn an_aborted_world_launches_nothing() {
    let machine = Machine::default();
    let world = world(&machine);
    let mut op = MoeAllToAll::new(&world, &tuning(), &Uncompiled).unwrap();
    machine.fail("synchronize_stream", 0);
    assert!(world.finish(0, RawStream::DEFAULT).is_err());
    // SAFETY: nothing runs on mocks.
    let refused = unsafe { op.ranks_mut()[0].dispatch_raw(&TOKENS, RawStream::DEFAULT) };
    assert!(matches!(refused, Err(RuntimeError::Poisoned { .. })));
    assert_eq!(machine.launches.lock().unwrap().len(), 0);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_left() {
    let machine = Machine::default();
    let world = world(&machine);
    let three =
        MoeTuning::defaults_with(&MoeShape { ranks: 3, ..SHAPE }, Hook::None, Layout::ExpertMajor).unwrap();
    let said = MoeAllToAll::new(&world, &three, &Uncompiled).unwrap_err().to_string();
    assert_eq!(said, "ranks = 3: 2, the size of the world");
    let before = machine.alive();
    for (call, good) in [("alloc_shared", 0), ("alloc", 1), ("load", 3), ("function", 2)] {
        let machine = Machine::default();
        let world = self::world(&machine);
        assert_eq!(machine.alive(), before);
        machine.fail(call, good);
        let said = MoeAllToAll::new(&world, &tuning(), &Uncompiled).unwrap_err().to_string();
        assert_eq!(said, format!("{call} failed: told to"));
        assert_eq!(machine.alive(), before, "{call}");
    }
}

#[test]
fn blocks_that_do_not_fit_the_gpu_are_told() {
    let machine = Machine::default();
    let gpu = Arc::new(MockGpu::new(&machine, 0)) as Arc<dyn Gpu>;
    let config = LaunchConfig { grid: 133, block_threads: 32, ..LaunchConfig::default() };
    // SAFETY: nothing runs on mocks.
    let new = |config| unsafe { LoadedKernel::new(&gpu, &[], "k", config) };
    let said = new(config).unwrap_err().to_string();
    assert!(said.starts_with("k needs 133 blocks resident at once and GPU 0 holds 132"), "{said}");
    assert_eq!(machine.alive(), 0);
    let config = LaunchConfig { grid: 132, ..config };
    new(config).unwrap();
}

#[test]
fn launches_of_a_round_share_all_but_their_epochs() {
    let plain = tuning();
    let by_token = tuning().with_layout(Layout::RankMajor);
    let hooked = MoeTuning::defaults_with(&SHAPE, Hook::Expert, Layout::ExpertMajor).unwrap();
    for base in [plain.clone(), by_token, hooked.clone(), tuning().with_dedup(false)] {
        for tuning in [Protocol::Flags, Protocol::Packets].map(|p| base.clone().with_protocol(p)) {
            for tuning in [tuning.clone().with_split(true), tuning] {
                let specs = tuning.launch_specs();
                let labels: Vec<&str> = specs.iter().map(|spec| spec.label.as_str()).collect();
                match tuning.key.split {
                    false => assert_eq!(labels, ["dispatch", "combine"]),
                    true => {
                        assert_eq!(labels, ["dispatch send", "dispatch recv", "combine send", "combine recv"])
                    }
                }
                let all = buffers(&specs).unwrap();
                let bound = |binding| {
                    let of = all.iter().filter(|b| b.binding == binding);
                    of.map(|b| b.name.as_str()).collect::<Vec<_>>()
                };
                let hooked = tuning.key.hook == Hook::Expert;
                let inputs = ["x", "n", "ids", "weights", "y"];
                assert_eq!(bound(Binding::Input), inputs[..if hooked { 4 } else { 5 }]);
                assert_eq!(bound(Binding::Output), ["out"]);
                let own = bound(Binding::State);
                assert!(["epoch", "combine_epoch"].iter().all(|name| own.contains(name)), "{own:?}");
                assert!(own.iter().all(|name| !name.starts_with("round_trip")), "{own:?}");
            }
        }
    }
}

#[test]
fn tables_are_set_before_a_dispatch_that_has_some() {
    let machine = Machine::default();
    let world = world(&machine);
    let tuning = tuning().with_placement(5, 2).unwrap().with_expert_load(true);
    let mut op = MoeAllToAll::new(&world, &tuning, &Uncompiled).unwrap();
    let rank = &mut op.ranks_mut()[0];
    let mut dispatch = |place, replicas, expert_load| {
        // SAFETY: nothing runs on mocks.
        unsafe {
            rank.set_tables(Tables { place, replicas, expert_load });
            rank.dispatch_raw(&TOKENS, RawStream::DEFAULT)
        }
    };
    for (name, [place, replicas, load]) in
        [("place", [0, 1, 2]), ("replicas", [1, 0, 2]), ("expert_load", [1, 2, 0])]
    {
        let said = dispatch(place, replicas, load).unwrap_err().to_string();
        assert_eq!(said, format!("{name} = null: memory of this GPU, by `set_tables`"));
    }
    let _ = dispatch(0x60, 0x70, 0x80).unwrap();
    let (launches, variant) = (machine.launches.lock().unwrap(), tuning.dispatch().into_variant());
    assert_eq!(launches.len(), 1);
    let passed = ["place", "replicas", "expert_load"].map(|name| member(&launches[0], &*variant, name, 0));
    assert_eq!(passed, [0x60, 0x70, 0x80]);
}

#[test]
fn an_id_of_no_expert_is_none_of_a_slot_either() {
    let machine = Machine::default();
    let world = world(&machine);
    let tuning = tuning().with_placement(5, 1).unwrap();
    let mut op = MoeAllToAll::new(&world, &tuning, &Uncompiled).unwrap();
    let said = op.ranks_mut()[0].set_empty_id(9).unwrap_err().to_string();
    assert_eq!(said, "empty_id = 9: negative, or 10 or more: no expert");
    op.ranks_mut()[0].set_empty_id(10).unwrap();
}
