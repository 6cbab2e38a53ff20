use std::sync::atomic::{AtomicU32, Ordering};

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Fields, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::*;
use crate::families::collectives::{
    Algorithm, AllGather, AllGatherKey, AllGatherNodes, AllGatherNodesKey, AllReduce, AllReduceKey,
    Broadcast, BroadcastKey,
};
use crate::harness::tune::example::{
    KEY, Pair, Stranger, StrangerKey, TARGET, pair, record, set, small, value,
};
use crate::harness::tune::{Key, KeyFields, Table};

fn table() -> Table {
    let mut table = Table::new("NVIDIA H200", TARGET);
    table.insert(record(KEY));
    table
}

fn gpu(name: &str, target: Target, driver: &str) -> GpuInfo {
    let (name, bus_id, driver) = (name.into(), "0000:18:00.0".into(), driver.into());
    GpuInfo { ordinal: 0, name, bus_id, target, sms: 132, memory: 1 << 37, driver }
}

#[test]
fn a_record_comes_before_defaults_and_these_before_what_is_near_them() {
    let device = Device::of_target(TARGET).with_tuned(Some(Tuned::new(table())));
    let by = |defaults: &Candidate, device: &Device| {
        let chosen = choose(&Pair, defaults.variants(), device)?;
        Pair.components().check(&chosen.variants)?;
        assert_eq!(Key::of("pair", &chosen.variants), Key::of("pair", defaults.variants()));
        Ok::<_, String>((chosen.by, Candidate::new(chosen.variants)))
    };
    assert_eq!(by(&pair(KEY), &device), Ok((Choice::Tuned, small(&pair(KEY)))));
    let other = pair(KEY.tokens(1000));
    assert_eq!(by(&other, &device), Ok((Choice::Default, other.clone())));
    assert_eq!(by(&pair(KEY), &Device::default()), Ok((Choice::Default, pair(KEY))));
    // Defaults that do not go together: the model is as fond of flags as of packets, and both have as many blocks.
    let apart = set(&other, 0, &[("protocol", "flags")]);
    let (choice, near) = by(&apart, &device).unwrap();
    assert_eq!(choice, Choice::Legal);
    assert_eq!(near.changed(&apart).len(), 1, "{near}");
    // What no step mends is an error.
    let keys = [pair(KEY).variants()[0].clone(), other.variants()[1].clone()];
    assert!(by(&Candidate::new(keys), &device).unwrap_err().contains("tokens must be the same"));
}

#[test]
fn a_device_has_the_table_of_its_class_target_and_driver() {
    let ampere = "cuda:sm_80".parse().unwrap();
    let builtin = Device::of_target(TARGET);
    assert_eq!((builtin.target(), builtin.tuned().is_some()), (Some(TARGET), true));
    assert!(Device::of_target(ampere).tuned().is_none());
    assert!(Device::of_target(ampere).with_tuned(Some(Tuned::new(table()))).tuned().is_none());
    assert!(Device::default().with_tuned(Some(Tuned::new(table()))).tuned().is_some());
    let by = |driver| {
        let device = Device::of_gpu(&gpu("NVIDIA H200 NVL", TARGET, driver));
        assert_eq!(device.tuned().map(Tuned::table), builtin.tuned().map(Tuned::table));
        let device = device.with_tuned(Some(Tuned::new(table())));
        choose(&Pair, pair(KEY).variants(), &device).unwrap().by
    };
    let earlier = Choice::Earlier { key: KeyFields::new() };
    assert_eq!(["CUDA 13.1", "CUDA 14.0"].map(by), [Choice::Tuned, earlier]);
}

#[test]
fn registries_get_the_configuration_of_one_family() {
    let key = StrangerKey { elements: 64, ranks: 2 };
    let task = crate::harness::tune::example::stranger_task(64);
    let mut table = table();
    table.insert(crate::harness::tune::example::record_of(&task, &small(&task.defaults)));
    let device = Device::default().with_tuned(Some(Tuned::new(table)));
    let default: Stranger = config(&key, &Device::default()).unwrap();
    assert_eq!(default, Stranger::with_defaults(&key).unwrap());
    let tuned: Stranger = config(&key, &device).unwrap();
    assert_eq!((tuned.warps, tuned.blocks), (2, 2));
    let lookup = lookup::<Stranger>(device);
    assert_eq!(lookup.find(&key), Some(tuned));
    assert_ne!(lookup.digest(), super::lookup::<Stranger>(Device::default()).digest());
    assert!(config::<Stranger>(&StrangerKey { elements: 0, ranks: 2 }, &Device::default()).is_err());
    assert_eq!(value(&default.into_variant(), "warps").to_string(), "8");
}

/// How often [`filled`] was traced.
static TRACED: AtomicU32 = AtomicU32::new(0);

/// A family with more shared memory than some devices have, and a field that does not change that.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "filled", kernel = filled, args = FilledArgs, warps = 4)]
struct Filled {
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    ranks: u32,
    /// Pieces of 16 KiB.
    #[tune(short = "s", values = [2, 4, 8, 12], default = 12, shrinks)]
    stages: u32,
    /// Blocks.
    #[tune(short = "b", range = 1..=1024, default = 132, shrinks)]
    blocks: u32,
}

impl Legal for Filled {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`filled`].
#[derive(KernelArgs)]
#[args(config = Filled)]
struct FilledArgs {
    /// What goes in.
    #[input]
    #[len(|_| 256)]
    x: Ptr<u32>,
    /// What comes out.
    #[output]
    #[len(|_| 256)]
    y: Ptr<u32>,
}

/// Copies by way of shared memory.
#[kernel]
fn filled(c: &Filled, a: &FilledArgs) {
    TRACED.fetch_add(1, Ordering::Relaxed);
    role("copy", c.blocks, |_| {
        let row = shared::<u32>("row", c.stages * 4096);
        row.store(0, a.x.load(0, 256));
        a.y.store(0, row.load(0, 256));
    });
}

/// A choice has 50 ms: kernels are what takes time, and few are traced.
#[test]
fn few_kernels_are_traced_for_a_choice() {
    let key = FilledKey { ranks: 2 };
    let of = |device: &Device| {
        let before = TRACED.load(Ordering::Relaxed);
        let chosen: Filled = config(&key, device).unwrap();
        (chosen.stages, chosen.blocks, TRACED.load(Ordering::Relaxed) - before)
    };
    assert_eq!(of(&Device::default()), (12, 132, 0));
    for (target, fitting, most) in [("cuda:sm_90a", 12, 1), ("cuda:sm_86", 4, 7)] {
        let (stages, blocks, traced) = of(&Device::of_target(target.parse().unwrap()));
        assert_eq!((stages, blocks), (fitting, 132), "{target}");
        assert!(traced <= most, "{target}: {traced} kernels");
    }
    // A request keeps what it sets, and the printer says what the device lacks.
    let (ranks, stages) = (("ranks".into(), "2".into()), ("stages".into(), "12".into()));
    let request = Request { key: vec![ranks], tuning: vec![stages], ..Request::family("filled", "filled") };
    let default = Filled::with_defaults(&key).unwrap().into_variant();
    let device = Device::of_target("cuda:sm_86".parse().unwrap());
    let kept = for_requests(None, &[request], &Registry::new([default.family()]), &device).unwrap();
    let set = kept.variants[0].as_any().downcast_ref::<Filled>().unwrap();
    assert_eq!((set.stages, set.blocks), (12, 132));
}

/// Python asks by names of fields, and Rust by keys.
#[test]
fn a_request_by_names_gets_what_its_key_gets() {
    fn same<F: Family>(key: &F::Key, device: &Device) {
        let suite = suite::plain::<F>();
        let values = F::Key::fields().iter().zip(key.values());
        let named = values.map(|(field, value)| (field.name.to_owned(), value.to_string())).collect();
        let request = Request { key: named, ..Request::family("asked", F::NAME) };
        let registry = Registry::new([F::entry()]);
        let by_names = for_requests(Some(suite), &[request], &registry, device).unwrap();
        let by_key = config::<F>(key, device).unwrap().into_variant();
        assert_eq!(by_names.variants[0].variant_name(), by_key.variant_name());
    }
    let mut chosen = vec![];
    for device in [Device::default(), Device::of_target("cuda:sm_90a".parse().unwrap())] {
        for (elements, ranks) in [(64, 2), (1 << 12, 4), (1 << 20, 4), (1 << 24, 8)] {
            let (dtype, nodes) = (Dtype::Bf16, 2);
            let all_reduce = AllReduceKey::new(elements, ranks, dtype);
            chosen.push(config::<AllReduce>(&all_reduce, &device).unwrap().blocks);
            same::<AllReduce>(&all_reduce, &device);
            same::<AllGather>(&AllGatherKey::new(elements, ranks, dtype), &device);
            same::<Broadcast>(
                &BroadcastKey { root: 1, ..BroadcastKey::new(elements, ranks, dtype) },
                &device,
            );
            same::<AllGatherNodes>(&AllGatherNodesKey { elements, ranks, nodes, dtype }, &device);
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    assert!(chosen.len() > 1, "lengths choose alike: {chosen:?}");
}

#[test]
fn blocks_of_two_roles_fit_what_a_launch_may_have() {
    let key = AllReduceKey::new(1 << 16, 4, Dtype::Bf16);
    let config = AllReduce {
        blocks: 48,
        senders: 64,
        algorithm: Algorithm::OneShot,
        ..AllReduce::with_defaults(&key).unwrap()
    };
    let of = |most| {
        let found = with_fewer_blocks(&config.clone().into_variant(), most).unwrap();
        let found = found.as_any().downcast_ref::<AllReduce>().unwrap().clone();
        assert_eq!(AllReduce { blocks: 48, senders: 64, ..found.clone() }, config, "nothing else changes");
        (found.blocks, found.senders)
    };
    assert_eq!(of(132), (48, 64));
    assert_eq!(of(129), (48, 32));
    assert_eq!(of(98), (48, 32));
    assert_eq!(of(66), (32, 32));
    assert_eq!(of(10), (4, 4));
    let alone = AllGatherNodes::with_defaults(&AllGatherNodesKey {
        elements: 1 << 20,
        ranks: 4,
        nodes: 2,
        dtype: Dtype::F32,
    })
    .unwrap();
    let few = with_fewer_blocks(&alone.into_variant(), 4).unwrap();
    assert_eq!(few.as_any().downcast_ref::<AllGatherNodes>().unwrap().blocks, 1);
}
