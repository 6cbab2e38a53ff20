//! Products of matrices on sm_90a: nothing in the loops over pieces waits for memory, and matrix instructions are not waited for one by
//! one.

use std::path::Path;
use std::process::Command;

use peerwarp::build::toolchain::Tool;
use peerwarp::codegen::print::Source;
use peerwarp::families::matmul::{AllGatherMatmul, GroupedMatmul, Matmul, MatmulReduceScatter};
use rayon::prelude::*;

use super::nvidia::{compile, parse};
use super::{Instruction, distinct, output, source, tool};

/// With a loader: alone, behind a wait, of tiles that it draws, with parts of other ranks, and of groups whose rows it counts. And without one, where boxes would bring what is not there yet.
pub(super) fn sources(target: &str) -> Vec<Source> {
    let shape = "ranks=2 dtype=bf16 n=7168 k=4096";
    let experts = "groups=32 n=4096 k=7168 dtype=fp8 scales=block";
    distinct(vec![
        source::<Matmul>(&format!("{shape} m=8192 order=strided"), target),
        source::<AllGatherMatmul>(&format!("{shape} m=8192 gathered=true"), target),
        source::<AllGatherMatmul>(&format!("{shape} m=128 split=2"), target),
        source::<Matmul>(&format!("{shape} m=8192 order=counter"), target),
        source::<AllGatherMatmul>(&format!("{shape} m=8192 order=counter"), target),
        source::<MatmulReduceScatter>(&format!("{shape} m=8192"), target),
        source::<Matmul>(&format!("{shape} m=512 order=strided"), target),
        source::<Matmul>("ranks=2 dtype=fp8 scales=row n=7168 k=4096 m=8192", target),
        source::<Matmul>("ranks=2 dtype=fp8 scales=block n=7168 k=7168 m=8192", target),
        source::<Matmul>("ranks=2 dtype=fp8 scales=tensor n=7168 k=4096 m=512", target),
        source::<GroupedMatmul>(&format!("{experts} rows=8192 activation=swiglu out=fp8"), target),
        source::<GroupedMatmul>(&format!("{experts} rows=8192 gather=2048 activation=swiglu"), target),
        source::<GroupedMatmul>(&format!("{shape} groups=8 rows=8192 gather=2048"), target),
        source::<Matmul>(&format!("{shape} m=256 tile_columns=128 split=2"), target),
        source::<AllGatherMatmul>(&format!("{shape} m=280 together=false tile_columns=64"), target),
        source::<GroupedMatmul>(&format!("{shape} groups=8 rows=8192 tile_columns=256"), target),
        source::<GroupedMatmul>(&format!("{shape} groups=32 rows=256 order=counter"), target),
    ])
}

fn multiplies(text: &str) -> bool {
    text.contains("HGMMA") || text.contains("QGMMA")
}

fn brings(text: &str) -> bool {
    text.contains("UTMALDG")
}

/// The loops of a listing: of an instruction through which all ways to an instruction go that goes back to it, what is on the way between
/// the two. (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm".)
fn loops(code: &[Instruction]) -> Vec<Vec<bool>> {
    let root = code.len();
    let mut next: Vec<Vec<usize>> =
        code.iter().map(|i| i.next.iter().copied().filter(|&to| to < root).collect()).collect();
    let mut before = vec![vec![]; root + 1];
    for (at, ways) in next.iter().enumerate() {
        ways.iter().for_each(|&to| before[to].push(at));
    }
    // Where functions begin.
    next.push((0..root).filter(|&at| before[at].is_empty()).collect());
    next[root].iter().for_each(|&to| before[to].push(root));
    // Numbers in the order in which a search leaves places: what dominates has the higher one.
    let (mut number, mut order, mut seen) = (vec![0; root + 1], vec![], vec![false; root + 1]);
    let mut open = vec![(root, 0)];
    seen[root] = true;
    while let Some((at, way)) = open.pop() {
        match next[at].get(way) {
            Some(&to) => {
                open.push((at, way + 1));
                if !std::mem::replace(&mut seen[to], true) {
                    open.push((to, 0));
                }
            }
            None => {
                number[at] = order.len();
                order.push(at);
            }
        }
    }
    let mut above: Vec<Option<usize>> = vec![None; root + 1];
    above[root] = Some(root);
    let mut changed = true;
    while changed {
        changed = false;
        for &at in order.iter().rev().filter(|&&at| at != root) {
            let known = before[at].iter().copied().filter(|&from| above[from].is_some());
            let meet = known.reduce(|mut a, mut b| {
                while a != b {
                    let lower = if number[a] < number[b] { &mut a } else { &mut b };
                    *lower = above[*lower].expect("it is known");
                }
                a
            });
            changed |= above[at] != meet;
            above[at] = meet;
        }
    }
    let dominates = |head: usize, mut at: usize| {
        while number[at] < number[head] {
            at = above[at].expect("it is known");
        }
        at == head
    };
    let back = order.iter().flat_map(|&from| next[from].iter().map(move |&to| (from, to)));
    let body = |(from, head): (usize, usize)| {
        let (mut body, mut open) = (vec![false; root], vec![from]);
        body[head] = true;
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut body[at], true) {
                open.extend(&before[at]);
            }
        }
        body
    };
    back.filter(|&(from, head)| from != root && dominates(head, from)).map(body).collect()
}

/// The places of the loops that have all of this in them, and no loop within that has.
fn innermost(code: &[Instruction], loops: &[Vec<bool>], all: &[fn(&str) -> bool]) -> Vec<Vec<usize>> {
    let places = |body: &Vec<bool>| (0..code.len()).filter(|&at| body[at]).collect::<Vec<_>>();
    let has = |body: &Vec<usize>| all.iter().all(|what| body.iter().any(|&at| what(&code[at].text)));
    let found: Vec<Vec<usize>> = loops.iter().map(places).filter(has).collect();
    let within = |inner: &Vec<usize>, outer: &Vec<usize>| {
        inner.len() < outer.len() && inner.iter().all(|at| outer.binary_search(at).is_ok())
    };
    let least = |body: &&Vec<usize>| !found.iter().any(|inner| within(inner, body));
    found.iter().filter(least).cloned().collect()
}

/// What is wrong with a kernel that multiplies, given what the compiler says of it.
fn complaints(listing: &str, compiler: &str) -> Vec<String> {
    let code = parse(listing);
    let mut said = vec![];
    // C7510 and its like, of which each has another reason.
    if let Some(line) = compiler.lines().find(|line| line.contains("instructions are serialized")) {
        said.push(format!("multiply_later: the compiler waits for each matrix instruction: {line}"));
    }
    let count = |what: &str| code.iter().filter(|i| i.text.contains(what)).count();
    if count("LDL") + count("STL") > 0 {
        said.push("local memory: something was spilled".into());
    }
    if !code.iter().any(|i| multiplies(&i.text)) {
        said.push("multiply_later: nothing is multiplied by warpgroups".into());
    }
    // What brings a box is a loop of its own, over lanes of whom one is left; around it, a piece is waited for.
    let all_loops = loops(&code);
    let mut loops = innermost(&code, &all_loops, &[multiplies]);
    loops.extend(innermost(&code, &all_loops, &[brings, |text| text.contains("SYNCS")]));
    let counted =
        |body: &[usize], what: fn(&str) -> bool| body.iter().filter(|at| what(&code[**at].text)).count();
    if !loops.iter().any(|body| counted(body, multiplies) >= 4) {
        said.push("dot_of_pieces: no loop multiplies a piece".into());
    }
    for body in &loops {
        // What lanes have brought themselves they hand to the matrix instructions' proxy, which takes a fence in their block.
        let by_lanes = counted(body, |text| text.contains("LDGSTS")) > 0;
        let fence = |text: &str| text.contains("MEMBAR") && !(by_lanes && text.contains(".CTA"));
        if let Some(at) = body.iter().find(|at| fence(&code[**at].text)) {
            said.push(format!("ring: `{}` in the loop over pieces", code[*at].text));
        }
        let waits = counted(body, |text| text.contains("WARPGROUP.DEPBAR"));
        if waits > 1 && waits >= counted(body, multiplies) {
            said.push("multiply_later: each matrix instruction is waited for".into());
        }
    }
    said.sort();
    said.dedup();
    said
}

/// Machine code of a text, and what the compiler says.
fn listing(tools: (&Path, &Path), file_name: &str, text: &str) -> (String, String) {
    let (cubin, _, said) = compile(tools.0, file_name, text);
    (output(Command::new(tools.1).arg("-c").arg(&cubin)), said)
}

#[test]
fn loops_over_pieces_wait_for_nothing_but_pieces() {
    let (Some(nvcc), Some(nvdisasm)) = (tool(Tool::Nvcc), tool(Tool::Nvdisasm)) else { return };
    sources("cuda:sm_90a").par_iter().for_each(|source| {
        let (listing, compiler) = listing((&nvcc, &nvdisasm), &source.file_name, &source.text);
        let said = complaints(&listing, &compiler);
        assert!(said.is_empty(), "{}:\n{}", source.entry, said.join("\n"));
    });
}

/// Texts that an author of a template could have written.
#[test]
fn loops_that_wait_are_found() {
    let (Some(nvcc), Some(nvdisasm)) = (tool(Tool::Nvcc), tool(Tool::Nvdisasm)) else { return };
    // Fewer blocks than parts: each has a loop over them.
    let key = "ranks=2 dtype=bf16 m=128 n=512 k=4096 tile_rows=64 tile_columns=64 warps=4 stages=4 blocks=64";
    let source = source::<Matmul>(key, "cuda:sm_90a");
    let bugs = [
        (
            "fence",
            "ring: `MEMBAR",
            r#"asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];""#,
            r#"__threadfence(); asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];""#,
        ),
        (
            "serial",
            "multiply_later: the compiler waits",
            r#"asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");"#,
            r#"sums[0][0] *= 0.5f; asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");"#,
        ),
        (
            "one by one",
            "multiply_later: each matrix instruction is waited for",
            "multiply_later(ring.room, sums, left + k * 2, right + k * 2);",
            r#"{ multiply_later(ring.room, sums, left + k * 2, right + k * 2); asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory"); }"#,
        ),
    ];
    for (name, complaint, from, to) in bugs {
        assert_eq!(source.text.matches(from).count(), 1, "{name}: {from}");
        let file_name = source.file_name.replace(".cu", &format!("_{}.cu", name.replace(' ', "_")));
        let (listing, compiler) = listing((&nvcc, &nvdisasm), &file_name, &source.text.replace(from, to));
        let said = complaints(&listing, &compiler);
        assert!(said.iter().any(|s| s.starts_with(complaint)), "{name}: {said:?}\n{compiler}");
    }
}
