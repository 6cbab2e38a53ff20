//! What MoE's options ask for where ranks are on several nodes: launches between the nodes, and those within each.

use peerwarp_codegen::family::{Choice, Family, FamilyEntry};

use super::super::RowDtype;
use super::super::kernels::{Combine, CombineNodes, Dispatch, DispatchNodes, Quantise};
use super::{Settings, has, request};
use crate::harness::request::Request;
use crate::harness::workload::Given;
use crate::input::InputError;
use crate::models::Shape;

/// The nodes that are asked for, if they are not one.
pub(super) fn of(given: &Given) -> Option<&str> {
    given.get("nodes").map(String::as_str).filter(|nodes| *nodes != "1")
}

/// The launches of a round in their order: to other nodes, within each, and back from them.
///
/// # Errors
/// The number of nodes cannot be read.
pub(super) fn requests(
    (label, shape): (&str, &Shape),
    (nodes, sizes): (&str, &[(String, String)]),
    given: &Given,
    tuning: &Settings,
) -> Result<Vec<Request>, InputError> {
    let count: u32 = nodes
        .parse()
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| InputError::not_allowed("--nodes", nodes, "a whole number, 1 or more"))?;
    let own = |family: FamilyEntry, (shape, sizes): (&Shape, &[(String, String)])| {
        let tuning = tuning.iter().filter(|(name, _)| has(family, name)).cloned().collect();
        request(label, family, (shape, sizes), tuning)
    };
    let phases = match given.get("phase").map_or("both", String::as_str) {
        "split" => vec!["send", "recv"],
        phase => vec![phase],
    };
    let quantised = given.get("quantise").and_then(|name| Quantise::from_name(name)?.from());
    // What is quantised, is so within the node.
    let given_rows = [RowDtype::Bf16, RowDtype::Fp16].into_iter().find(|rows| rows.dispatched() == quantised);
    let given_rows = quantised.and(given_rows).map(|rows| rows.name());
    let combined = given.get("combined").map(String::as_str);
    let between = |family: FamilyEntry, dtype: Option<&str>| {
        let of_phase = |phase: &&str| {
            let mut request = own(family, (shape, sizes));
            request
                .key
                .extend([("nodes", nodes), ("phase", phase)].map(|(k, v)| (k.to_owned(), v.to_owned())));
            set_dtype(&mut request, dtype);
            request
        };
        phases.iter().map(of_phase).collect::<Vec<_>>()
    };
    // What is not a number, or not divided by the nodes, the launches between nodes name first.
    let near = |(field, text): &(String, String)| {
        let number = |of: fn(u32, u32) -> u32| {
            text.parse().map_or_else(|_| text.clone(), |n| of(n, count).to_string())
        };
        let text = match field.as_str() {
            "tokens" => number(u32::saturating_mul),
            "ranks" => number(|ranks, nodes| ranks / nodes),
            _ => text.clone(),
        };
        (field.clone(), text)
    };
    let of_node: Vec<(String, String)> = sizes.iter().map(near).collect();
    let of_node = (&Shape { experts: shape.experts / count, ..*shape }, &of_node[..]);
    let (mut dispatch, mut combine) = (own(Dispatch::entry(), of_node), own(Combine::entry(), of_node));
    dispatch.key.push(("of_node".into(), "true".into()));
    set_dtype(&mut combine, combined);
    let there = between(DispatchNodes::entry(), given_rows).into_iter();
    let back = between(CombineNodes::entry(), combined);
    Ok(there.chain([dispatch, combine]).chain(back).collect())
}

fn set_dtype(request: &mut Request, name: Option<&str>) {
    let own = request.key.iter_mut().filter(|(field, _)| field == "dtype");
    own.zip(name).for_each(|((_, dtype), name)| name.clone_into(dtype));
}
