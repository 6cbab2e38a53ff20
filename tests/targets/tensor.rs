//! Products of matrices on sm_100a, sm_103a and sm_110a, which have never run on hardware: all of them are made in tensor memory, and
//! nothing is spilled.

use std::process::Command;

use peerwarp::build::toolchain::Tool;
use peerwarp::codegen::print::Source;
use peerwarp::families::matmul::{AllGatherMatmul, GroupedMatmul, Matmul, MatmulReduceScatter};
use peerwarp::families::moe::kernels::MoeLayer;
use rayon::prelude::*;

use super::nvidia::{compile_for, parse};
use super::products::sources;
use super::{distinct, output, source, tool};

/// What is wrong with the machine code of a product, given what the compiler says of it.
fn complaints(source: &Source, listing: &str, compiler: &str) -> Vec<String> {
    let code = parse(listing);
    let count = |what: &str| code.iter().filter(|i| i.text.contains(what)).count();
    let said = |holds: bool, what: &str| (!holds).then(|| what.to_owned());
    let paired = source.text.contains("void __cluster_dims__(2, 1, 1) __launch_bounds__");
    let in_memory = count("UTCHMMA") + count("UTCQMMA") + count("UTCOMMA");
    let columns = source.launch.tensor_columns;
    let registers =
        compiler.lines().filter_map(|line| line.split_once(": Used ")?.1.split_once(" registers"));
    let registers = registers.filter_map(|(n, _)| n.parse::<u32>().ok()).max();
    let most = 65536 / source.launch.block_threads.next_multiple_of(128);
    [
        said(in_memory >= 4, "multiply_later: no loop multiplies a piece"),
        said(in_memory == count("HMMA") + count("QMMA") + count("OMMA"), "dot: warps multiply"),
        said(count("LDTM") > 0, "add_sums: no sums are loaded"),
        said(
            count("UTCCP")
                == 2 * source.text.matches(".scale_vec::1X").count()
                    + 8 * source.text.matches(".scale_vec::4X").count(),
            "copy_scales_later: scales of either operand are not copied once a piece",
        ),
        said(count("UTCBAR") > 0, "commit_products: nothing is committed"),
        said(
            count("MMA.2CTA") == if paired { in_memory } else { 0 }
                && count("UTCBAR.2CTA.MULTICAST") == if paired { count("UTCBAR") } else { 0 },
            "pair: an instruction is for one block",
        ),
        said(
            count("UCGABAR_ARV") == count("UCGABAR_WAIT") && (count("UCGABAR_ARV") > 2) == paired,
            "pair: blocks leave without each other",
        ),
        said(count("LDL") + count("STL") == 0, "local memory: something was spilled"),
        said(registers.is_some_and(|n| n <= most), "registers: more than a block of its threads has"),
        said(
            columns.is_power_of_two() && (64..=512).contains(&columns),
            "columns: no power of two, or too many",
        ),
        said(
            source.text.contains("tcgen05.mma") && !source.text.contains("mma.sync"),
            "text: mma.sync is left",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn products_are_made_in_tensor_memory_without_spills() {
    let (Some(nvcc), Some(nvdisasm)) = (tool(Tool::Nvcc), tool(Tool::Nvdisasm)) else { return };
    for arch in ["sm_100a", "sm_103a", "sm_110a"] {
        let target = format!("cuda:{arch}");
        let mx = "dtype=fp8 scales=mx n=4096 k=7168";
        let groups = format!("{mx} groups=32 rows=8192 align=128 activation=swiglu");
        let nvfp4 = "dtype=u32 scales=nvfp4 n=4096 k=7168 m=8192 bias=true";
        let scaled = [
            source::<Matmul>(&format!("{mx} m=8192"), &target),
            source::<Matmul>(nvfp4, &target),
            source::<GroupedMatmul>(&groups, &target),
            source::<Matmul>(&format!("{mx} m=8192 out=fp8"), &target),
            source::<GroupedMatmul>(&format!("{groups} out=fp8"), &target),
        ];
        let pair = |rest: &str| {
            source::<Matmul>(&format!("m=8192 n=7168 k=4096 {rest} pair=true order=strided"), &target)
        };
        let groups = "groups=32 n=4096 k=7168 dtype=fp8 scales=block rows=8192 activation=swiglu pair=true order=strided";
        let ranks = "m=8192 n=7168 k=4096 ranks=2 dtype=bf16 pair=true";
        let pairs = [
            pair("dtype=bf16"),
            pair("dtype=fp16 tile_rows=256 tile_columns=128 bias=true"),
            pair("dtype=fp8 scales=row tile_columns=64"),
            source::<GroupedMatmul>(groups, &target),
            pair("dtype=fp8 scales=row out=fp8"),
            source::<AllGatherMatmul>(&format!("{ranks} gathered=true"), &target),
            source::<MatmulReduceScatter>(ranks, &target),
            source::<MatmulReduceScatter>(&format!("{ranks} algorithm=push tile_columns=128"), &target),
        ];
        for source in &pairs {
            assert!(source.text.contains("cta_group::2") && !source.text.contains("cta_group::1"));
        }
        let layer = "hidden=7168 inter=2048 experts=256 topk=8 tokens=128 ranks=8";
        let layers =
            ["bf16", "fp8 warps=8"].map(|rest| source::<MoeLayer>(&format!("{layer} dtype={rest}"), &target));
        let all = distinct([sources(&target), scaled.to_vec(), pairs.to_vec(), layers.to_vec()].concat());
        all.par_iter().for_each(|source| {
            let (cubin, _, compiler) = compile_for(arch, &nvcc, &source.file_name, &source.text);
            let listing = output(Command::new(&nvdisasm).arg("-c").arg(&cubin));
            let said = complaints(source, &listing, &compiler);
            assert!(said.is_empty(), "{arch}, {}:\n{}", source.entry, said.join("\n"));
            // Each complaint comes up where there is a reason for it.
            let warps = listing.replace("UTCHMMA", "HMMA.16816").replace("UTCQMMA", "QMMA.16832");
            let warps = warps.replace("UTCOMMA", "QMMA.16832");
            let broken = complaints(source, &format!("{warps}\n        /*0000*/ LDL R0, [R1] ;"), &compiler);
            let found =
                ["multiply_later", "dot", "local memory"].map(|p| broken.iter().any(|s| s.starts_with(p)));
            assert_eq!(found, [true; 3], "{broken:?}");
            let alone =
                complaints(source, &listing.replace(".2CTA", "").replace("UCGABAR", "BAR"), &compiler);
            let complains = source.text.contains("cta_group::2");
            assert_eq!(alone.iter().filter(|s| s.starts_with("pair: ")).count(), 2 * usize::from(complains));
        });
    }
}
