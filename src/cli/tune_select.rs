//! What `tune` is asked for.

use peerwarp_codegen::family::{Choice, Family};

use super::App;
use super::args::{Selection, TuneArgs};
use super::select::read_catalogue;
use crate::families::moe::MoeShape;
use crate::families::moe::kernels::{Dispatch, Hook, Layout};
use crate::families::moe::run::MoeTuning;
use crate::families::moe::tuned::MoePair;
use crate::harness::request::{Request, Scope};
use crate::harness::tune::Task;
use crate::harness::workload::Given;
use crate::input::{self, InputError};

/// Every shape that is asked for, once with each layout. All shapes with rows by expert come first, as they stand unless
/// somebody asks for something else: they are there if time does not suffice for all.
pub(super) fn tasks(app: &App, args: &TuneArgs) -> Result<Vec<Task>, InputError> {
    let layouts = layouts(args.selection.layout.as_deref())?;
    let shapes = shapes(app, args)?;
    let all = layouts.iter().flat_map(|&layout| shapes.iter().map(move |&shape| (shape, layout)));
    all.map(|(shape, layout)| {
        let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout);
        let tuning = tuning.map_err(|e| InputError::not_allowed("shape", shape, e.to_string()))?;
        let variants = [tuning.dispatch.into_variant(), tuning.combine.into_variant()];
        Ok(Task::new(&MoePair, variants, Given::new()))
    })
    .collect()
}

/// The layouts of a list; all, if none is given.
fn layouts(list: Option<&str>) -> Result<Vec<Layout>, InputError> {
    let Some(list) = list else { return Ok(Layout::ALL.to_vec()) };
    let mut layouts = vec![];
    for name in input::list(list) {
        let known = Layout::ALL.iter().map(Choice::name);
        let layout = Layout::from_name(name).ok_or_else(|| InputError::unknown("--layout", name, known))?;
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    layouts.sort_by_key(|layout| Layout::ALL.iter().position(|known| known == layout));
    Ok(layouts)
}

/// Every shape that is asked for, once.
fn shapes(app: &App, args: &TuneArgs) -> Result<Vec<MoeShape>, InputError> {
    let selection = &Selection { layout: None, ..args.selection.clone() };
    refuse(selection)?;
    let mut requests = vec![];
    if !selection.is_empty() || args.catalogue.is_none() {
        requests.extend(selection.requests()?);
    }
    if let Some(name) = &args.catalogue {
        let moe = |r: &Request| r.scope == Scope::Moe;
        requests.extend(read_catalogue(name)?.requests.into_iter().filter(moe));
    }
    let lists = [("tokens", &selection.tokens), ("ranks", &selection.ranks), ("dtype", &selection.dtype)];
    for (field, given) in lists {
        if let Some(list) = given {
            requests = requests.iter().flat_map(|r| each(r, field, list)).collect();
        }
    }
    let mut shapes = vec![];
    for request in &requests {
        for variant in request.resolve(app.registry())? {
            if let Some(dispatch) = variant.as_any().downcast_ref::<Dispatch>()
                && !shapes.contains(&dispatch.shape())
            {
                shapes.push(dispatch.shape());
            }
        }
    }
    match shapes.is_empty() {
        false => Ok(shapes),
        true => Err(InputError::missing("selection", "--model, --hidden or --catalogue with MoE shapes")),
    }
}

/// A request for each value of a list.
fn each(request: &Request, field: &str, list: &str) -> Vec<Request> {
    let with = |value: &str| {
        let mut request = request.clone();
        request.key.retain(|(name, _)| name != field);
        request.key.push((field.to_owned(), value.to_owned()));
        request
    };
    input::list(list).map(with).collect()
}

/// What selects other things than shapes, or says what tuning is to find out.
fn refuse(selection: &Selection) -> Result<(), InputError> {
    let given = [
        ("--set", selection.settings.first()),
        ("--dedup", selection.dedup.as_ref()),
        ("--phase", selection.phase.as_ref()),
        ("--tuned", selection.tuned.as_ref()),
        ("--family", selection.family.as_ref()),
        ("VARIANT", selection.items.first()),
    ];
    match given.into_iter().find_map(|(field, value)| Some((field, value?))) {
        None => Ok(()),
        Some((field, value)) => {
            let with = "tune, which chooses the values of tuning fields";
            Err(InputError::conflict(field, value, with, "--model, --hidden or --catalogue"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_list_and_else_all_by_expert_first() {
        let of = |list: Option<&str>| layouts(list).map_err(|e| e.headline());
        assert_eq!(of(None).unwrap(), [Layout::Experts, Layout::Tokens]);
        assert_eq!(of(Some("tokens")).unwrap(), [Layout::Tokens]);
        assert_eq!(of(Some("tokens, experts,tokens")).unwrap(), [Layout::Experts, Layout::Tokens]);
        assert_eq!(of(Some("token")).unwrap_err(), "--layout = token: no such name");
    }
}
