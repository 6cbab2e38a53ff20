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
/// A number cannot be read, or a launch does half of an operation.
pub(super) fn requests(
    (label, shape): (&str, &Shape),
    (nodes, sizes): (&str, &[(String, String)]),
    given: &Given,
    tuning: &Settings,
) -> Result<Vec<Request>, InputError> {
    if let Some(phase) = given.get("phase").filter(|phase| *phase != "both") {
        let with = format!("--nodes = {nodes}");
        let allowed = "both: what travels between nodes is one launch each way";
        return Err(InputError::conflict("--phase", phase, with, allowed));
    }
    let count: u32 = nodes
        .parse()
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| InputError::not_allowed("--nodes", nodes, "a whole number, 1 or more"))?;
    let own = |family: FamilyEntry, (shape, sizes): (&Shape, &[(String, String)])| {
        let tuning = tuning.iter().filter(|(name, _)| has(family, name)).cloned().collect();
        request(label, family, (shape, sizes), tuning)
    };
    let between = |family| {
        let mut request = own(family, (shape, sizes));
        request.key.push(("nodes".into(), nodes.into()));
        request
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
    let of_node = (&Shape { experts: shape.experts / count, ..shape.clone() }, &of_node[..]);
    let (mut first, mut last) = (between(DispatchNodes::entry()), between(CombineNodes::entry()));
    let (mut dispatch, mut combine) = (own(Dispatch::entry(), of_node), own(Combine::entry(), of_node));
    dispatch.key.push(("of_node".into(), "true".into()));
    if let Some(from) = given.get("quantise").and_then(|name| Quantise::from_name(name)?.from()) {
        // What is quantised, is so within the node.
        let rows = [RowDtype::Bf16, RowDtype::Fp16].into_iter().find(|rows| rows.dispatched() == Some(from));
        set_dtype(&mut first, rows.map_or("", |rows| rows.name()));
    }
    if let Some(combined) = given.get("combined") {
        set_dtype(&mut combine, combined);
        set_dtype(&mut last, combined);
    }
    Ok(vec![first, dispatch, combine, last])
}

fn set_dtype(request: &mut Request, name: &str) {
    let own = request.key.iter_mut().filter(|(field, _)| field == "dtype");
    own.for_each(|(_, dtype)| name.clone_into(dtype));
}
