//! Inline assembly as calls of the runtime: PTX instruction by instruction, and the few lines of AMD's assembly. What is
//! not known here is refused, so that no instruction is silently left out.

/// One `asm volatile` statement.
#[derive(Debug)]
pub struct Asm {
    /// The assembly, its string literals joined.
    pub template: String,
    /// The C++ expressions of the operands, outputs first.
    pub operands: Vec<String>,
}

/// C++ statements that do what the assembly does.
pub fn translate(asm: &Asm) -> Result<String, String> {
    let body = asm.template.trim().trim_start_matches('{').trim_end_matches('}');
    let mut out = String::from("{");
    let mut registers = vec![];
    for instruction in body.split([';', '\n']).map(str::trim).filter(|i| !i.is_empty()) {
        out += " ";
        if let Some((ty, names)) = registers_of(instruction) {
            let names: Vec<&str> = names.split(',').map(str::trim).collect();
            let declared: Vec<String> = names.iter().map(|n| register(n)).collect();
            out += &format!("{ty} {};", declared.join(", "));
            registers.extend(names);
        } else {
            out += &statement(instruction, &asm.operands, &registers)?;
        }
    }
    Ok(out + " }")
}

/// The C++ type and the names of the registers that an instruction declares.
fn registers_of(instruction: &str) -> Option<(&'static str, &str)> {
    let (ty, names) = instruction.strip_prefix(".reg .")?.split_once(' ')?;
    match ty {
        "pred" => Some(("bool", names)),
        "u32" | "b32" => Some(("unsigned", names)),
        "u64" | "b64" => Some(("unsigned long long", names)),
        "b128" => Some(("::host::u128", names)),
        _ => None,
    }
}

/// The variable of a register: the operands' expressions may have one of the register's own name.
fn register(name: &str) -> String {
    format!("ptx_{name}")
}

fn statement(instruction: &str, operands: &[String], registers: &[&str]) -> Result<String, String> {
    let refused = || format!("`{instruction}` is not known to tests/host/ptx.rs");
    let (opcode, rest) = instruction.split_once(char::is_whitespace).unwrap_or((instruction, ""));
    let one = |a: &str| if registers.contains(&a) { Ok(register(a)) } else { operand(a, operands) };
    let args = arguments(rest).into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
    let args: Vec<&str> = args.iter().map(String::as_str).filter(|a| !a.is_empty()).collect();
    let parts: Vec<&str> = opcode.split('.').collect();
    Ok(match (parts.as_slice(), args.as_slice()) {
        (["setp", compare, "u32"], [to, a, b]) => {
            let sign = comparison(compare).ok_or_else(refused)?;
            format!("{to} = unsigned({a}) {sign} unsigned({b});")
        }
        (["selp", "u32" | "b32"], [to, a, b, chosen]) => format!("{to} = {chosen} ? {a} : {b};"),
        (["mov", size @ ("b64" | "b128")], [to, from]) if to.starts_with('{') || from.starts_with('{') => {
            halves(size, to, from, operands, registers)?
        }
        (["ld", "relaxed", at, "global", "b128"], [to, from]) => {
            let (from, at) = (address(from).ok_or_else(refused)?, scope(at).ok_or_else(refused)?);
            let from = format!("static_cast<const ::host::u128*>({from})");
            format!("{to} = ::host::atomic_load({from}, ::host::Order::Relaxed, {at});")
        }
        (["st", "relaxed", at, "global", "b128"], [to, value]) => {
            let (to, at) = (address(to).ok_or_else(refused)?, scope(at).ok_or_else(refused)?);
            let to = format!("static_cast<::host::u128*>({to})");
            format!("::host::atomic_store({to}, {value}, ::host::Order::Relaxed, {at});")
        }
        (["cvt", "rn", "bf16x2", "f32"], [to, high, low]) => {
            format!("{to} = unsigned(::host::bf16_from({high})) << 16 | ::host::bf16_from({low});")
        }
        (["fma", "rn", "bf16x2"], [to, a, b, c]) => format!("{to} = ::host::fma_bf16s({a}, {b}, {c});"),
        (["mov", "u64"], [to, "%globaltimer"]) => format!("{to} = ::host::now_ns();"),
        (["barrier", "cta", "sync"] | ["bar", "sync"], [number, threads]) => {
            format!("::host::barrier({number}, {threads}, true);")
        }
        (
            ["barrier", "cta", "red", "and", "pred"] | ["bar", "red", "and", "pred"],
            [to, number, threads, mine],
        ) => {
            format!("{to} = ::host::barrier({number}, {threads}, {mine});")
        }
        (
            ["ld", order @ ("relaxed" | "acquire"), at, "global", "u32" | "b32" | "u64" | "b64"],
            [to, from],
        ) => {
            let from = address(from).ok_or_else(refused)?;
            let (order, scope) = (ordering(order), scope(at).ok_or_else(refused)?);
            format!("{to} = ::host::atomic_load({from}, {order}, {scope});")
        }
        (
            ["st", order @ ("relaxed" | "release"), at, "global", "u32" | "b32" | "u64" | "b64"],
            [to, value],
        ) => {
            let to = address(to).ok_or_else(refused)?;
            let (order, scope) = (ordering(order), scope(at).ok_or_else(refused)?);
            format!("::host::atomic_store({to}, {value}, {order}, {scope});")
        }
        (["red", order @ ("relaxed" | "release"), at, "global", "add", "u32"], [to, amount]) => {
            let to = address(to).ok_or_else(refused)?;
            let (order, scope) = (ordering(order), scope(at).ok_or_else(refused)?);
            let next = format!("[&](const unsigned old) {{ return old + ({amount}); }}");
            format!("::host::atomic_update({to}, {order}, {scope}, {next});")
        }
        (
            ["atom", order @ ("relaxed" | "acquire" | "release" | "acq_rel"), at, "global", "inc", "u32"],
            [to, from, most],
        ) => {
            let from = address(from).ok_or_else(refused)?;
            let (order, scope) = (ordering(order), scope(at).ok_or_else(refused)?);
            let next = format!("[&](const unsigned old) {{ return old >= ({most}) ? 0u : old + 1; }}");
            format!("{to} = ::host::atomic_update({from}, {order}, {scope}, {next});")
        }
        (["fence", order @ ("acquire" | "release" | "acq_rel" | "sc"), at], []) => {
            format!("::host::fence({}, {});", ordering(order), scope(at).ok_or_else(refused)?)
        }
        (["st", "global", "b32"] | ["st", "global", "v2" | "v4", "b32"], [to, value]) => {
            let to = address(to).ok_or_else(refused)?;
            let words = vector(value, operands)?;
            format!("::host::store_words({to}, {words});")
        }
        (["ld", "global", "v4", "b32"], [to, from]) => {
            let (from, words) = (address(from).ok_or_else(refused)?, vector(to, operands)?);
            format!("::host::load_words({from}, {words});")
        }
        (
            ["multimem", "ld_reduce", "relaxed", "sys", "global", how, "v4", ty]
            | ["multimem", "ld_reduce", "relaxed", "sys", "global", how @ "add", "acc::f32", "v4", ty],
            [to, from],
        ) => {
            let (how, elements) = reduced(how, ty).ok_or_else(refused)?;
            let (from, words) = (address(from).ok_or_else(refused)?, vector(to, operands)?);
            format!("::host::multimem_load<::host::{elements}>({from}, {how}, {words});")
        }
        (["multimem", "st", "relaxed", "sys", "global", "v4", "f32"], [to, value]) => {
            let (to, words) = (address(to).ok_or_else(refused)?, vector(value, operands)?);
            format!("::host::multimem_store({to}, {words});")
        }
        (["cp", "async", "cg", "shared", "global"], [to, from, "16"]) => {
            let (to, from) = (address(to).ok_or_else(refused)?, address(from).ok_or_else(refused)?);
            format!("::host::copy_later({to}, {from}, 16, 16);")
        }
        (["cp", "async", "cg", "shared", "global"], [to, from, "16", bytes]) => {
            let (to, from) = (address(to).ok_or_else(refused)?, address(from).ok_or_else(refused)?);
            format!("::host::copy_later({to}, {from}, {bytes}, 16);")
        }
        (["cp", "async", "commit_group"], []) => "::host::copies_group();".into(),
        (["cp", "async", "wait_group"], [most]) => format!("::host::copies_done_but({most});"),
        (["wgmma", "fence", "sync", "aligned"], []) => String::new(),
        (["wgmma", "commit_group", "sync", "aligned"], []) => "::host::products_group();".into(),
        (["wgmma", "wait_group", "sync", "aligned"], [most]) => format!("::host::products_done_but({most});"),
        (
            ["wgmma", "mma_async", "sync", "aligned", shape, "f32", ty, other],
            [sums, a, b, _, "1", "1", transposed @ ..],
        ) if ty == other && shape.starts_with("m64n") => {
            let k = shape.rsplit('k').next().unwrap_or_default();
            // Only those of 16 bits could be transposed.
            let elements = match (*ty, k, transposed) {
                ("bf16", "16", ["0", "0"]) => "Bf16s",
                ("f16", "16", ["0", "0"]) => "Fp16s",
                ("e4m3", "32", []) => "Fp8s",
                _ => return Err(refused()),
            };
            format!("::host::multiply_later<::host::{elements}>({a}, {b}, {});", vector(sums, operands)?)
        }
        (["tcgen05", "alloc", group, "sync", "aligned", "shared::cta", "b32"], [to, columns]) => {
            let (group, to) = (blocks(group).ok_or_else(refused)?, address(to).ok_or_else(refused)?);
            format!("::host::tensor_take({group}, {to}, {columns});")
        }
        (["tcgen05", "relinquish_alloc_permit", group, "sync", "aligned"], []) => {
            format!("::host::tensor_relinquish({});", blocks(group).ok_or_else(refused)?)
        }
        (["tcgen05", "dealloc", group, "sync", "aligned", "b32"], [first, columns]) => {
            format!("::host::tensor_give({}, {first}, {columns});", blocks(group).ok_or_else(refused)?)
        }
        (["tcgen05", "mma", group, kind @ ("kind::f16" | "kind::f8f6f4")], [sums, a, b, word, add]) => {
            let (sums, is_f16) = (address(sums).ok_or_else(refused)?, *kind == "kind::f16");
            let group = blocks(group).ok_or_else(refused)?;
            format!("::host::tensor_multiply({group}, {is_f16}, {sums}, {a}, {b}, {word}, {add});")
        }
        (
            [
                "tcgen05",
                "mma",
                "cta_group::1",
                kind @ ("kind::mxf8f6f4" | "kind::mxf4nvf4"),
                "block_scale",
                vector,
            ],
            [sums, a, b, word, a_scales, b_scales, add],
        ) if *vector == (if *kind == "kind::mxf8f6f4" { "scale_vec::1X" } else { "scale_vec::4X" }) => {
            let [sums, a_scales, b_scales] =
                [sums, a_scales, b_scales].map(|of| address(of).ok_or_else(refused));
            let (sums, a_scales, b_scales, is_mx) = (sums?, a_scales?, b_scales?, *kind == "kind::mxf8f6f4");
            format!(
                "::host::tensor_multiply_scaled({is_mx}, {sums}, {a}, {b}, {word}, {a_scales}, {b_scales}, {add});"
            )
        }
        (["tcgen05", "cp", "cta_group::1", "32x128b", "warpx4"], [to, from]) => {
            format!("::host::tensor_copy_scales({}, {from});", address(to).ok_or_else(refused)?)
        }
        (
            ["tcgen05", "commit", "cta_group::1", "mbarrier::arrive::one", "shared::cluster", "b64"],
            [barrier],
        ) => format!("::host::tensor_commit({});", address(barrier).ok_or_else(refused)?),
        (
            [
                "tcgen05",
                "commit",
                "cta_group::2",
                "mbarrier::arrive::one",
                "shared::cluster",
                "multicast::cluster",
                "b64",
            ],
            [barrier, mask],
        ) => format!("::host::tensor_commit_in_pair({}, {mask});", address(barrier).ok_or_else(refused)?),
        (["mapa", "shared::cluster", "u64"], [to, from, number]) => {
            format!("{to} = ::host::in_block_of_pair({from}, {number});")
        }
        (["ld", "shared::cluster", "u32"], [to, from]) => {
            format!("{to} = ::host::load_in_pair({});", address(from).ok_or_else(refused)?)
        }
        (["barrier", "cluster", "arrive", "release", "aligned"], []) => "::host::pair_arrive();".into(),
        (["barrier", "cluster", "wait", "acquire", "aligned"], []) => "::host::pair_wait();".into(),
        // Which proxy an access goes through is not modelled here.
        (["fence", "mbarrier_init", "release", "cluster"], []) => String::new(),
        (["mbarrier", "arrive", "release", "cluster", "shared::cluster", "b64"], ["_", barrier]) => {
            format!("::host::barrier_arrive_in_pair({});", address(barrier).ok_or_else(refused)?)
        }
        (["tcgen05", "ld", "sync", "aligned", "16x256b", "x4", "b32"], [to, from]) => {
            let (from, to) = (address(from).ok_or_else(refused)?, vector(to, operands)?);
            format!("::host::tensor_load({from}, {to});")
        }
        (["tcgen05", "wait::ld", "sync", "aligned"], []) => "::host::tensor_loads_done();".into(),
        (["tcgen05", "fence::before_thread_sync"], []) => "::host::tensor_fence_before();".into(),
        (["tcgen05", "fence::after_thread_sync"], []) => "::host::tensor_fence_after();".into(),
        (["ldmatrix", "sync", "aligned", "m8n8", "x4", "shared", "b16"], [to, from]) => {
            let (from, to) = (address(from).ok_or_else(refused)?, vector(to, operands)?);
            format!("::host::load_blocks({from}, {to});")
        }
        (["mma", "sync", "aligned", shape, "row", "col", "f32", ty, other, "f32"], [sums, a, b, before])
            if ty == other && sums == before =>
        {
            let elements = match (*ty, *shape) {
                ("bf16", "m16n8k16") => "Bf16s",
                ("f16", "m16n8k16") => "Fp16s",
                ("e4m3", "m16n8k32") => "Fp8s",
                _ => return Err(refused()),
            };
            let [sums, a, b] = [sums, a, b].map(|v| vector(v, operands));
            format!("::host::multiply_blocks<::host::{elements}>({}, {}, {});", sums?, a?, b?)
        }
        (["mbarrier", "init", "shared::cta", "b64"], [barrier, arrivals]) => {
            format!("::host::barrier_begin({}, {arrivals});", address(barrier).ok_or_else(refused)?)
        }
        (["mbarrier", "arrive", "shared::cta", "b64"], ["_", barrier]) => {
            format!("::host::barrier_arrive({}, 0);", address(barrier).ok_or_else(refused)?)
        }
        (["mbarrier", "arrive", "expect_tx", "shared::cta", "b64"], ["_", barrier, bytes]) => {
            format!("::host::barrier_arrive({}, {bytes});", address(barrier).ok_or_else(refused)?)
        }
        (["mbarrier", "expect_tx", "relaxed", "cta", "shared::cta", "b64"], [barrier, bytes]) => {
            format!("::host::barrier_expect({}, {bytes});", address(barrier).ok_or_else(refused)?)
        }
        (
            ["mbarrier", "try_wait", "parity", "shared::cta", "b64"]
            | ["mbarrier", "try_wait", "parity", "acquire", "cluster", "shared::cta", "b64"],
            [done, barrier, parity],
        ) => {
            format!("{done} = ::host::barrier_wait({}, {parity});", address(barrier).ok_or_else(refused)?)
        }
        (
            ["mbarrier", "test_wait", "parity", "shared::cta", "b64"]
            | ["mbarrier", "test_wait", "parity", "acquire", "cluster", "shared::cta", "b64"],
            [done, barrier, parity],
        ) => {
            format!("{done} = ::host::barrier_test({}, {parity});", address(barrier).ok_or_else(refused)?)
        }
        (
            [
                "cp",
                "async",
                "bulk",
                "tensor",
                "2d",
                "shared::cluster",
                "global",
                "tile",
                "mbarrier::complete_tx::bytes",
                group @ ..,
            ],
            [to, from, barrier],
        ) if matches!(group, [] | ["cta_group::2"]) => {
            let [to, from, barrier] = [to, from, barrier].map(|text| address(text).ok_or_else(refused));
            let (map, at) = from?.split_once(',').ok_or_else(refused)?;
            let pair = if group.is_empty() { "" } else { "_in_pair" };
            format!(
                "::host::bring_box{pair}({}, {map}, {}, {});",
                to?,
                vector(at.trim(), operands)?,
                barrier?
            )
        }
        (
            ["cp", "async", "bulk", "shared::cluster", "global", "mbarrier::complete_tx::bytes"],
            [to, from, bytes, barrier],
        ) => {
            let [to, from, barrier] = [to, from, barrier].map(|text| address(text).ok_or_else(refused));
            format!("::host::bring_bytes({}, {}, {bytes}, {});", to?, from?, barrier?)
        }
        (["cp", "async", "wait_all"], []) => "::host::copies_done();".into(),
        (["cp", "async", "bulk", "global", "shared::cta", "bulk_group"], [to, from, bytes]) => {
            let (to, from) = (address(to).ok_or_else(refused)?, address(from).ok_or_else(refused)?);
            format!("::host::bulk_copy({to}, {from}, {bytes});")
        }
        (["cp", "async", "bulk", "commit_group"], []) => "::host::bulk_commit();".into(),
        (["cp", "async", "bulk", "wait_group", "read"], ["0"]) => "::host::bulk_read();".into(),
        (["cp", "async", "bulk", "wait_group"], ["0"]) => "::host::bulk_done();".into(),
        // Which proxy an access goes through is not modelled here.
        (["fence", "proxy", "async", "shared::cta" | "global"] | ["fence", "proxy", "alias"], []) => {
            String::new()
        }
        // How many registers there are is the compiler's business.
        (["setmaxnreg", "inc" | "dec", "sync", "aligned", "u32"], [_]) => String::new(),
        // Launches run one after the other here.
        (["griddepcontrol", "wait" | "launch_dependents"], []) => String::new(),
        (["s_waitcnt"], ["vmcnt(0)"]) | (["s_wait_storecnt"], ["0x0"]) => "::host::stores_done();".into(),
        // Here a load is over when it has returned.
        (["s_wait_loadcnt"], ["0x0"]) => ";".into(),
        _ => return Err(refused()),
    })
}

/// How a switch makes one element of two, and what the elements of a word are.
fn reduced(how: &str, ty: &str) -> Option<(&'static str, &'static str)> {
    let elements = match ty {
        "f32" if how == "add" => "Singles",
        "f16x2" => "Fp16s",
        "bf16x2" => "Bf16s",
        _ => return None,
    };
    let how = match how {
        "add" => "[](const float a, const float b) { return a + b; }",
        "min" => "[](const float a, const float b) { return b < a ? b : a; }",
        "max" => "[](const float a, const float b) { return b > a ? b : a; }",
        _ => return None,
    };
    Some((how, elements))
}

/// Puts two halves together, or takes them apart.
fn halves(
    size: &str,
    to: &str,
    from: &str,
    operands: &[String],
    registers: &[&str],
) -> Result<String, String> {
    let (whole, half, bits) = match size {
        "b64" => ("::host::u64", "::host::u32", 32),
        _ => ("::host::u128", "::host::u64", 64),
    };
    let one = |a: &str| if registers.contains(&a) { Ok(register(a)) } else { operand(a, operands) };
    let pair = |text: &str| {
        let inner = text.strip_prefix('{')?.strip_suffix('}')?;
        inner.split_once(',').map(|(low, high)| (low.trim().to_owned(), high.trim().to_owned()))
    };
    match (pair(to), pair(from)) {
        (None, Some((low, high))) => Ok(format!(
            "{to} = {whole}({half}({})) | {whole}({half}({})) << {bits};",
            one(&low)?,
            one(&high)?
        )),
        (Some((low, high)), None) => {
            Ok(format!("{} = {half}({from}); {} = {half}({from} >> {bits});", one(&low)?, one(&high)?))
        }
        _ => Err(format!("`mov.{size} {to}, {from}` is not known to tests/host/ptx.rs")),
    }
}

/// The arguments of an instruction: commas in braces are a vector's, and commas in brackets an address's.
fn arguments(text: &str) -> Vec<&str> {
    let mut inside = 0;
    let separates = |c: char| {
        match c {
            '{' | '[' => inside += 1,
            '}' | ']' => inside -= 1,
            _ => {}
        }
        c == ',' && inside == 0
    };
    text.split(separates).map(str::trim).collect()
}

/// The elements of a vector, or the one that stands without braces.
fn vector(text: &str, operands: &[String]) -> Result<String, String> {
    let elements = text.trim_start_matches('{').trim_end_matches('}').split(',');
    Ok(elements.map(|e| operand(e.trim(), operands)).collect::<Result<Vec<_>, _>>()?.join(", "))
}

/// An operand of an instruction; vectors stay as they are. With `%0` and the like replaced.
fn operand(text: &str, operands: &[String]) -> Result<String, String> {
    if text.starts_with('{') {
        return Ok(text.into());
    }
    let Some(at) = text.find('%') else { return Ok(text.into()) };
    let digits: String = text[at + 1..].chars().take_while(char::is_ascii_digit).collect();
    if digits.is_empty() {
        return Ok(text.into()); // a special register
    }
    let number: usize = digits.parse().map_err(|e| format!("operand %{digits}: {e}"))?;
    let given = operands.get(number).ok_or_else(|| format!("there is no operand %{number}"))?;
    Ok(format!("{}({given}){}", &text[..at], &text[at + 1 + digits.len()..]))
}

/// How many blocks an instruction is for.
fn blocks(group: &str) -> Option<&str> {
    group.strip_prefix("cta_group::").filter(|blocks| matches!(*blocks, "1" | "2"))
}

/// What stands in the brackets of an address.
fn address(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']')
}

fn comparison(name: &str) -> Option<&'static str> {
    let signs = [("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")];
    signs.iter().find(|s| s.0 == name).map(|s| s.1)
}

fn ordering(name: &str) -> &'static str {
    match name {
        "acquire" => "::host::Order::Acquire",
        "release" => "::host::Order::Release",
        "acq_rel" | "sc" => "::host::Order::AcqRel",
        _ => "::host::Order::Relaxed",
    }
}

fn scope(name: &str) -> Option<&'static str> {
    match name {
        "cta" => Some("::host::Scope::Block"),
        "gpu" => Some("::host::Scope::Gpu"),
        "sys" => Some("::host::Scope::System"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(template: &str, operands: &[&str]) -> String {
        let operands = operands.iter().map(|o| o.to_string()).collect();
        translate(&Asm { template: template.into(), operands }).unwrap_or_else(|e| e)
    }

    #[test]
    fn instructions_become_calls() {
        assert_eq!(
            said("ld.acquire.sys.global.u32 %0, [%1];", &["x", "p"]),
            "{ (x) = ::host::atomic_load((p), ::host::Order::Acquire, ::host::Scope::System); }"
        );
        assert_eq!(
            said("st.global.v2.b32 [%0], {%1, %2};", &["p", "x", "y"]),
            "{ ::host::store_words((p), (x), (y)); }"
        );
        assert_eq!(
            said("fence.acquire.sys;", &[]),
            "{ ::host::fence(::host::Order::Acquire, ::host::Scope::System); }"
        );
        assert_eq!(
            said("st.release.gpu.global.u32 [%0], %1;", &["p + 1", "x"]),
            "{ ::host::atomic_store((p + 1), (x), ::host::Order::Release, ::host::Scope::Gpu); }"
        );
        assert_eq!(
            said("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;", &["x", "p", "n"]),
            "{ (x) = ::host::atomic_update((p), ::host::Order::AcqRel, ::host::Scope::Gpu, [&](const unsigned old) { return old \
             >= ((n)) ? 0u : old + 1; }); }"
        );
        assert_eq!(
            said(
                "{\n\t.reg .pred mine, every;\n\tsetp.ne.u32 mine, %1, 0;\n\tselp.u32 %0, 1, 0, mine;\n\t}",
                &["o", "mine"]
            ),
            "{ bool ptx_mine, ptx_every; ptx_mine = unsigned((mine)) != unsigned(0); (o) = ptx_mine ? 1 : 0; }"
        );
    }

    #[test]
    fn boxes_have_an_address_of_several_parts() {
        assert_eq!(
            said(
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];",
                &["to", "&map", "c", "r", "b"]
            ),
            "{ ::host::bring_box((to), (&map), (c), (r), (b)); }"
        );
        assert_eq!(
            said("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", &["b", "n"]),
            "{ ::host::barrier_arrive((b), (n)); }"
        );
        assert_eq!(
            said("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;", &["b", "n"]),
            "{ ::host::barrier_expect((b), (n)); }"
        );
    }

    #[test]
    fn registers_are_variables() {
        assert_eq!(
            said("{\n\t.reg .u32 seen;\n\tld.acquire.sys.global.u32 seen, [%0];\n\t}", &["p"]),
            "{ unsigned ptx_seen; ptx_seen = ::host::atomic_load((p), ::host::Order::Acquire, ::host::Scope::System); }"
        );
        let loaded = said(
            "{\n\t.reg .b64 low, high;\n\t.reg .b128 packet;\n\tld.relaxed.sys.global.b128 packet, [%2];\n\t\
             mov.b128 {low, high}, packet;\n\tmov.b64 {%0, %1}, low;\n\t}",
            &["x", "y", "p"],
        );
        assert_eq!(
            loaded,
            "{ unsigned long long ptx_low, ptx_high; ::host::u128 ptx_packet; ptx_packet = \
             ::host::atomic_load(static_cast<const ::host::u128*>((p)), ::host::Order::Relaxed, \
             ::host::Scope::System); ptx_low = ::host::u64(ptx_packet); ptx_high = \
             ::host::u64(ptx_packet >> 64); (x) = ::host::u32(ptx_low); (y) = ::host::u32(ptx_low >> 32); }"
        );
        assert!(said(".reg .b256 packets;", &[]).contains("is not known"));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert!(said("ld.global.nc.u32 %0, [%1];", &["x", "p"]).contains("is not known"));
        assert!(
            said("multimem.ld_reduce.relaxed.sys.global.max.v4.f32 {%0}, [%1];", &["x", "p"])
                .contains("is not known")
        );
        assert!(said("ld.acquire.cluster.global.u32 %0, [%1];", &["x", "p"]).contains("is not known"));
        assert!(said("mov.u64 %0, %clock64;", &["x"]).contains("is not known"));
        assert!(said("s_waitcnt lgkmcnt(0)", &[]).contains("is not known"));
        assert!(said("st.release.sys.global.u32 [%0], %1;", &["p"]).contains("no operand %1"));
    }
}
