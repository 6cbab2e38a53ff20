//! From the selection on the command line to variants.

use std::collections::BTreeSet;
use std::path::Path;

use peerwarp_codegen::family::{CudaArch, FamilyEntry, Target, Variant};

use crate::build::emit::Job;
use crate::build::pack::Pack;
use crate::harness::catalogue::{self, Catalogue};
use crate::harness::choose::{self, Device};
use crate::harness::request::{self, Request, has};
use crate::harness::tune::{self, Tuned};
use crate::harness::workload::{Given, On, Suite};
use crate::input::{self, InputError};
use crate::models;

use super::App;
use super::args::{Selection, Wanted};
use super::output::Failure;

/// The option for the world size, which every family has a field for.
const RANKS: &str = "ranks";
/// The option that says on how many nodes they are.
const NODES: &str = "nodes";

/// Variants that are run together.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    /// What says what they are run on.
    pub suite: &'static dyn Suite,
    /// The variants.
    pub variants: Vec<Variant>,
    /// Where they come from.
    pub from: tune::Choice,
    /// What was given of the suite's options for them.
    pub given: Given,
    /// What asked for them, one for each.
    requests: Vec<Request>,
}

/// What options of a suite ask for.
type OfSuite = (&'static dyn Suite, Vec<Request>);

/// What a selection asks for.
struct Asked {
    /// The suite whose options ask for it, if any do.
    suite: Option<&'static dyn Suite>,
    /// Requests that go together.
    requests: Vec<Request>,
}

/// What `--tuned` says.
#[derive(Clone, Debug)]
pub(super) enum Tables {
    /// Nothing: the table of the device, if there is one.
    OfDevice,
    /// `none`.
    None,
    /// A table.
    Named(Tuned),
}

impl Tables {
    /// A device with the table that is said.
    pub fn on(&self, device: Device) -> Device {
        match self {
            Tables::OfDevice => device,
            Tables::None => device.with_tuned(None),
            Tables::Named(tuned) => device.with_tuned(Some(tuned.clone())),
        }
    }
}

impl Selection {
    /// What `--tuned` says.
    pub fn tables(&self, app: &App) -> Result<Tables, InputError> {
        match self.tuned.as_deref() {
            None => Ok(Tables::OfDevice),
            Some("none") => Ok(Tables::None),
            Some(name) => Tuned::named(name, &app.suites().collect::<Vec<_>>()).map(Tables::Named),
        }
    }

    /// The selections with one value for each field that lists of values stand for, `elements=1024,4096`.
    fn each(&self) -> Vec<Selection> {
        let mut items: Vec<Vec<String>> = vec![vec![]];
        for item in &self.items {
            let values: Vec<String> = match item.split_once('=') {
                Some((field, list)) => input::list(list).map(|value| format!("{field}={value}")).collect(),
                None => vec![item.clone()],
            };
            let with = |items: &Vec<String>| {
                let with = |value: &String| [&items[..], std::slice::from_ref(value)].concat();
                values.iter().map(with).collect::<Vec<_>>()
            };
            items = items.iter().flat_map(with).collect();
        }
        items.into_iter().map(|items| Selection { items, ..self.clone() }).collect()
    }

    /// What was set of tuning fields.
    fn tuning(&self) -> Result<Vec<(String, String)>, InputError> {
        self.settings.iter().map(|s| pair(s, "--set")).collect()
    }
}

impl App {
    /// The variants that a selection means, to be run together. What it leaves open is as small as shows the protocol if `small`,
    /// else as is usual.
    pub(super) fn choose(
        &self,
        selection: &Selection,
        given: &Given,
        small: bool,
        device: &Device,
    ) -> Result<Chosen, Failure> {
        let asked = self.asked(selection, given, small)?;
        request::check_tuning(&asked.requests, self.registry())?;
        self.chosen(&asked, given, device)
    }

    /// The same where options may hold lists, or mean several problems: of each one.
    pub(super) fn choose_all(
        &self,
        selection: &Selection,
        given: &Given,
        small: bool,
        device: &Device,
    ) -> Result<Vec<Chosen>, Failure> {
        let mut sets = self.lists(given);
        for suite in self.suites() {
            sets = sets.iter().map(|set| suite.expand(set)).collect::<Result<Vec<_>, _>>()?.concat();
        }
        let selections = selection.each();
        let each = || selections.iter().flat_map(|one| sets.iter().map(move |set| (one, set)));
        let asked = each().map(|(one, set)| self.asked(one, set, small)).collect::<Result<Vec<_>, _>>()?;
        // What is set has to be of use to one of them.
        let all: Vec<Request> = asked.iter().flat_map(|a| a.requests.iter().cloned()).collect();
        request::check_tuning(&all, self.registry())?;
        asked.iter().zip(each()).map(|(asked, (_, set))| self.chosen(asked, set, device)).collect()
    }

    /// The sets of options with one value each that lists stand for.
    fn lists(&self, given: &Given) -> Vec<Given> {
        let options = self.suites().flat_map(|s| s.options()).filter(|o| o.list).map(|o| o.name);
        let mut sets = vec![given.clone()];
        for option in [RANKS, NODES].into_iter().chain(options) {
            let Some(list) = given.get(option) else { continue };
            let with = |set: &Given| {
                let value = |value: &str| {
                    let mut set = set.clone();
                    set.insert(option.to_owned(), value.to_owned());
                    set
                };
                input::list(list).map(value).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(with).collect();
        }
        sets
    }

    /// The variants that are chosen on a device for requests that go together.
    pub(super) fn resolve(
        &self,
        requests: &[Request],
        device: &Device,
    ) -> Result<choose::Chosen, InputError> {
        let family = requests.first().and_then(|request| request.family_in(self.registry()).ok());
        let owns = |s: &&'static dyn Suite| {
            s.families().iter().any(|f| family.is_some_and(|own| own.name() == f.name()))
        };
        choose::for_requests(self.suites().find(owns), requests, self.registry(), device)
    }

    /// The families that run together with those of these jobs: a folder has what was asked for of them last.
    pub(super) fn families_with(&self, jobs: &[Job]) -> Vec<&'static str> {
        let with = |suite: &dyn Suite| jobs.iter().any(|job| owns(suite, &job.variant));
        self.suites()
            .filter(|suite| with(*suite))
            .flat_map(Suite::families)
            .map(|family| family.name())
            .collect()
    }

    /// The suite that a variant's family belongs to.
    pub(super) fn suite_of(&self, variant: &Variant) -> Option<&'static dyn Suite> {
        self.suites().find(|suite| owns(*suite, variant))
    }

    /// The variants of what was asked for that one suite runs together.
    fn chosen(&self, asked: &Asked, given: &Given, device: &Device) -> Result<Chosen, Failure> {
        let choose::Chosen { mut variants, by: from } = self.resolve(&asked.requests, device)?;
        let suite = asked.suite.or_else(|| self.suite_of(variants.first()?));
        let suite = suite.ok_or_else(|| InputError::missing("selection", self.ways()))?;
        let mut requests = asked.requests.clone();
        match asked.suite {
            // Options may ask for variants of others, too.
            Some(_) => {
                let mut own = variants.iter().map(|variant| owns(suite, variant));
                requests.retain(|_| own.next().unwrap_or_default());
                variants.retain(|variant| owns(suite, variant));
            }
            None => {
                if let Some(other) = variants.iter().find(|variant| !owns(suite, variant)) {
                    let (other, with) = (other.variant_name(), variants[0].variant_name());
                    let allowed = format!("variants of {} together", suite.name());
                    return Err(InputError::conflict("VARIANT", other, with, allowed).into());
                }
            }
        }
        let own = suite.options();
        let others = self.suites().flat_map(|s| s.options()).map(|o| o.name);
        let others = others.filter(|name| !own.iter().any(|o| o.name == *name));
        for option in others {
            let field = |v: &Variant| has(v.family(), option);
            if let Some(value) = given.get(option).filter(|_| !variants.iter().any(field)) {
                let with = format!("{}, which has no such option", suite.name());
                return Err(InputError::conflict(
                    format!("--{option}"),
                    value,
                    with,
                    "the command without it",
                )
                .into());
            }
        }
        if let Some(Err(why)) = suite.components().together.map(|together| together(&variants)) {
            return Err(InputError::malformed("variants", "", why, "variants that go together").into());
        }
        Ok(Chosen { suite, variants, from, given: given.clone(), requests })
    }

    /// What the same requests get on another device.
    pub(super) fn on_device(&self, chosen: Chosen, device: &Device) -> Result<Chosen, Failure> {
        let choose::Chosen { variants, by: from } = self.resolve(&chosen.requests, device)?;
        Ok(Chosen { variants, from, ..chosen })
    }

    /// The same as a pack has it: what `pack` chooses for one of its targets, else what is chosen without a device.
    pub(super) fn in_pack(&self, chosen: Chosen, tables: &Tables, pack: &Pack) -> Result<Chosen, Failure> {
        let kernels = pack.kernels().map(|kernel| (kernel.entry.target, kernel.entry.variant.clone()));
        self.among(chosen, tables, &kernels.collect())
    }

    /// The same among these variants.
    fn among(
        &self,
        chosen: Chosen,
        tables: &Tables,
        there: &BTreeSet<(Target, String)>,
    ) -> Result<Chosen, Failure> {
        let mut targets: Vec<Target> = there.iter().map(|(target, _)| *target).collect();
        targets.dedup();
        for target in targets {
            let found = self.on_device(chosen.clone(), &tables.on(Device::of_target(target)))?;
            if found.variants.iter().all(|v| there.contains(&(target, v.variant_name()))) {
                return Ok(found);
            }
        }
        Ok(chosen)
    }

    /// Whether nothing at all is selected.
    pub(super) fn selects_nothing(&self, selection: &Selection, given: &Given) -> Result<bool, InputError> {
        let named = !selection.items.is_empty() || selection.family.is_some();
        Ok(!named && self.selected_by_options(given, false)?.is_none())
    }

    /// The requests of a selection, which go together.
    pub(super) fn requests(&self, selection: &Selection, given: &Given) -> Result<Vec<Request>, InputError> {
        let requests = self.asked(selection, given, false)?.requests;
        request::check_tuning(&requests, self.registry())?;
        Ok(requests)
    }

    fn asked(&self, selection: &Selection, given: &Given, small: bool) -> Result<Asked, InputError> {
        let tuning = selection.tuning()?;
        if let Some(nodes) = given.get(NODES).filter(|nodes| !nodes.parse().is_ok_and(|n: u32| n > 0)) {
            return Err(InputError::not_allowed("--nodes", nodes, "a number of nodes, 1 or more"));
        }
        let mut asked = match &selection.family {
            Some(name) => self.family(name, selection, given)?,
            None => self.unnamed(selection, given, small)?,
        };
        asked.requests.iter_mut().for_each(|r| r.tuning.extend(tuning.iter().cloned()));
        Ok(asked)
    }

    /// What is asked for without a family's name.
    fn unnamed(&self, selection: &Selection, given: &Given, small: bool) -> Result<Asked, InputError> {
        let by_options = self.selected_by_options(given, small)?;
        let several = given.get(NODES).filter(|nodes| *nodes != "1");
        match (by_options, selection.items.first()) {
            (Some((suite, requests)), _)
                if several.is_some_and(|_| requests.iter().all(|r| !r.has_key(NODES))) =>
            {
                let (nodes, with) =
                    (several.map_or("", String::as_str), format!("{}, which runs on one node", suite.name()));
                let allowed = format!("--nodes 1, or --family {}", self.families_over_nodes().join(", "));
                Err(InputError::conflict("--nodes", nodes, with, allowed))
            }
            (Some((suite, _)), Some(item)) => {
                let with = format!("the options of {}", suite.name());
                Err(InputError::conflict("VARIANT", item, with, "one way to select"))
            }
            (Some((suite, requests)), None) => Ok(Asked { suite: Some(suite), requests }),
            (None, Some(item)) if !item.contains('=') => {
                let requests = selection.items.iter().map(|item| self.variant(item, given));
                Ok(Asked { suite: None, requests: requests.collect::<Result<_, _>>()? })
            }
            (None, item) => match (self.registry().families(), item) {
                ([only], _) => self.family(only.name(), selection, given),
                (_, Some(item)) => {
                    Err(InputError::missing("--family", format!("the family that `{item}` is for")))
                }
                (_, None) => Err(InputError::missing("selection", self.ways())),
            },
        }
    }

    /// What suites make of their options.
    fn selected_by_options(&self, given: &Given, small: bool) -> Result<Option<OfSuite>, InputError> {
        let mut found: Option<OfSuite> = None;
        for suite in self.suites() {
            let requests = suite.select(given, small, self.registry())?;
            match &found {
                _ if requests.is_empty() => {}
                None => found = Some((suite, requests)),
                Some((first, _)) => {
                    let with = format!("options of {}", first.name());
                    return Err(InputError::conflict(
                        "selection",
                        suite.name(),
                        with,
                        "options of one of them",
                    ));
                }
            }
        }
        Ok(found)
    }

    /// The request for a family with its fields.
    fn family(&self, name: &str, selection: &Selection, given: &Given) -> Result<Asked, InputError> {
        let over_nodes = self.over_nodes(name, given)?;
        let name = over_nodes.as_deref().unwrap_or(name);
        let mut request = Request::family(models::slug(name), name);
        request.key = selection.items.iter().map(|i| pair(i, "--family")).collect::<Result<_, _>>()?;
        self.set_fields(&mut request, given, "--family")?;
        Ok(Asked { suite: None, requests: vec![request] })
    }

    /// The families that run on several nodes.
    fn families_over_nodes(&self) -> Vec<&'static str> {
        let has_nodes = |family: &&FamilyEntry| family.fields().iter().any(|field| field.nodes);
        self.registry().families().iter().filter(has_nodes).map(|family| family.name()).collect()
    }

    /// The family that stands for one where ranks are on several nodes, if it is another.
    fn over_nodes(&self, name: &str, given: &Given) -> Result<Option<String>, InputError> {
        let Some(nodes) = given.get(NODES).filter(|nodes| *nodes != "1") else { return Ok(None) };
        let several = self.families_over_nodes();
        let own = format!("{name}_nodes");
        match (several.contains(&name), several.contains(&&*own)) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(own)),
            (false, false) => {
                let with = format!("{name}, which runs on one node");
                let allowed = format!("--nodes 1, or a family for several: {}", several.join(", "));
                Err(InputError::conflict("--nodes", nodes, with, allowed))
            }
        }
    }

    /// The request for a variant by its name.
    fn variant(&self, name: &str, given: &Given) -> Result<Request, InputError> {
        if name.contains('=') {
            return Err(InputError::missing("--family", format!("the family that `{name}` is for")));
        }
        let mut request = Request::variant(name);
        let own = request.resolve_own(self.registry())?.nodes();
        if let Some(nodes) = given.get(NODES).filter(|nodes| **nodes != own.to_string()) {
            let allowed = format!("--nodes {own}, or the name of a variant for {nodes}");
            return Err(InputError::conflict(
                "--nodes",
                nodes,
                format!("{name}, which runs on {own}"),
                allowed,
            ));
        }
        self.set_fields(&mut request, given, "VARIANT")?;
        Ok(request)
    }

    /// Sets the fields that have an option of their own. An option that is none of the family's fields is for selections of
    /// by options.
    fn set_fields(&self, request: &mut Request, given: &Given, by: &str) -> Result<(), InputError> {
        let family = request.family_in(self.registry())?;
        if let (Some(ranks), Some(field)) = (given.get(RANKS), family.fields().iter().find(|f| f.ranks)) {
            request.key.push((field.name.to_owned(), ranks.clone()));
        }
        match (given.get(NODES), family.fields().iter().find(|f| f.nodes)) {
            (Some(nodes), Some(field)) => request.key.push((field.name.to_owned(), nodes.clone())),
            (Some(nodes), None) if nodes != "1" => {
                let with = format!("{}, which runs on one node", family.name());
                return Err(InputError::conflict("--nodes", nodes, with, "--nodes 1"));
            }
            (Some(_) | None, _) => {}
        }
        let options = self.suites().flat_map(|s| s.options()).filter(|o| o.on == On::Selection);
        for option in options {
            let Some(value) = given.get(option.name) else { continue };
            if !has(family, option.name) {
                let with = format!("{by}: it is no field of {}", family.name());
                let allowed = "one way to select";
                return Err(InputError::conflict(format!("--{}", option.name), value, with, allowed));
            }
            request.key.push((option.name.to_owned(), value.clone()));
        }
        Ok(())
    }

    /// What a selection could be, for errors.
    fn ways(&self) -> String {
        let mut ways: Vec<String> = vec![];
        for suite in self.suites() {
            let own = suite.options().into_iter().filter(|o| o.on == On::Selection);
            let own: Vec<String> =
                own.map(|o| format!("--{} {}", o.name, o.value.unwrap_or_default())).collect();
            if !own.is_empty() {
                ways.push(format!("options of {} ({})", suite.name(), own.join(", ")));
            }
        }
        ways.push("--family NAME FIELD=VALUE..".into());
        format!("{}, or the name of a variant", ways.join(", "))
    }

    /// A catalogue that comes with the program, or a file, with other values of some fields.
    pub(super) fn catalogue_with(&self, name: &str, instead: &Given) -> Result<Catalogue, InputError> {
        let suites: Vec<&'static dyn Suite> = self.suites().collect();
        let own = || suites.iter().flat_map(|s| s.catalogues());
        let known = own().map(|(known, _)| *known);
        let text = match own().find(|(known, _)| *known == name) {
            Some((_, text)) => (*text).to_owned(),
            None if name.ends_with(".toml") || Path::new(name).exists() => catalogue::read(Path::new(name))?,
            None => return Err(InputError::unknown("--catalogue", name, known.chain(["a FILE.toml"]))),
        };
        catalogue::parse_with(&text, name, &suites, self.registry(), instead)
    }

    /// The problems of a catalogue. Options that may be lists stand for what its entries say.
    pub(super) fn choose_catalogue(&self, name: &str, given: &Given) -> Result<Vec<Chosen>, Failure> {
        let lists: Vec<&str> =
            self.suites().flat_map(|s| s.options()).filter(|o| o.list).map(|o| o.name).collect();
        let instead = given.iter().filter(|(name, _)| *name == RANKS || lists.contains(&name.as_str()));
        let instead: Given = instead.map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut chosen = vec![];
        for set in self.lists(&instead) {
            for requests in self.catalogue_with(name, &set)?.problems {
                let family = requests[0].family_in(self.registry())?;
                let own = |s: &&'static dyn Suite| s.families().iter().any(|f| f.name() == family.name());
                let asked = Asked { suite: self.suites().find(own), requests };
                chosen.push(self.chosen(&asked, &Given::new(), &Device::default())?);
            }
        }
        Ok(chosen)
    }

    /// What the selection and the catalogue ask for, once for each target.
    pub(super) fn jobs(&self, wanted: &Wanted, given: &Given) -> Result<Vec<Job>, InputError> {
        let catalogue =
            wanted.catalogue.as_deref().map(|name| self.catalogue_with(name, &Given::new())).transpose()?;
        let tables = wanted.selection.tables(self)?;
        let targets = wanted.targets(catalogue.as_ref())?;
        let mut problems = match &catalogue {
            Some(_) if self.selects_nothing(&wanted.selection, given)? => vec![],
            _ => vec![self.requests(&wanted.selection, given)?],
        };
        if let Some(catalogue) = catalogue {
            problems.extend(self.with_settings(catalogue, &wanted.selection, given)?);
        }
        let mut jobs = vec![];
        for requests in &problems {
            for &target in &targets {
                let chosen = self.resolve(requests, &tables.on(Device::of_target(target)))?;
                let job = |(request, variant): (&Request, Variant)| Job {
                    label: request.label.clone(),
                    variant,
                    target,
                };
                jobs.extend(requests.iter().zip(chosen.variants).map(job));
            }
        }
        Ok(jobs)
    }

    /// What a catalogue asks for, with the settings that go for everything: of fields that it says nothing about.
    pub(super) fn with_settings(
        &self,
        catalogue: Catalogue,
        selection: &Selection,
        given: &Given,
    ) -> Result<Vec<Vec<Request>>, InputError> {
        let mut problems = catalogue.problems;
        let mut tuning = selection.tuning()?;
        if self.selects_nothing(selection, given)? {
            let options = self.suites().flat_map(|s| s.options()).filter(|o| o.on == On::Selection);
            for name in [RANKS, NODES].into_iter().chain(options.map(|o| o.name)) {
                let Some(value) = given.get(name) else { continue };
                if problems.iter().flatten().any(|request| request.has_key(name)) {
                    let with = "--catalogue, which says it itself";
                    let allowed = "--set, for tuning fields";
                    return Err(InputError::conflict(format!("--{name}"), value, with, allowed));
                }
                tuning.push((name.to_owned(), value.clone()));
            }
        }
        for requests in &mut problems {
            requests.iter_mut().for_each(|request| request.tuning.extend(tuning.iter().cloned()));
            request::check_tuning(requests, self.registry())?;
        }
        Ok(problems)
    }
}

impl Wanted {
    fn targets(&self, catalogue: Option<&Catalogue>) -> Result<Vec<Target>, InputError> {
        if self.target.is_empty() {
            let own = catalogue.map_or(&[][..], |c| &c.targets);
            return Ok(if own.is_empty() { vec![Target::Cuda(CudaArch::Sm90a)] } else { own.to_vec() });
        }
        let mut targets = vec![];
        for text in &self.target {
            let target = super::target(text)?;
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Ok(targets)
    }
}

/// Whether a variant's family is one of a suite's.
fn owns(suite: &dyn Suite, variant: &Variant) -> bool {
    suite.families().iter().any(|family| family.name() == variant.family().name())
}

pub(super) fn pair(text: &str, field: &str) -> Result<(String, String), InputError> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(InputError::not_allowed(field, text, "FIELD=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_has_what_was_chosen_for_its_target_or_by_default() {
        let app = App::new(&crate::cli::builtin());
        let given = [("model", "deepseek-v3"), ("tokens", "256")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let selection = Selection { ranks: Some("2".into()), ..Selection::default() };
        let mut given = Given::from(given);
        given.insert(RANKS.into(), "2".into());
        let of = |device: &Device| app.choose(&selection, &given, false, device).unwrap();
        let (hopper, ampere) = ("cuda:sm_90a".parse().unwrap(), "cuda:sm_80".parse().unwrap());
        let names = |chosen: &Chosen| chosen.variants.iter().map(|v| v.variant_name()).collect::<Vec<_>>();
        let (default, tuned) = (of(&Device::default()), of(&Device::of_target(hopper)));
        assert_ne!(names(&default), names(&tuned));
        let found = |of: &Chosen, target: Target| {
            let there = names(of).into_iter().map(|name| (target, name)).collect();
            names(&app.among(default.clone(), &Tables::OfDevice, &there).unwrap())
        };
        assert_eq!(found(&tuned, hopper), names(&tuned));
        // An older pack, and one of a target without a table, have defaults.
        assert_eq!((found(&default, hopper), found(&default, ampere)), (names(&default), names(&default)));
        let none = app.among(default.clone(), &Tables::None, &BTreeSet::new()).unwrap();
        assert_eq!(names(&none), names(&default));
    }
}
