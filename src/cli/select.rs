//! From the selection on the command line to requests.

use std::path::Path;

use peerwarp_codegen::family::{CudaArch, Target};

use crate::build::emit::Job;
use crate::families::moe::tuned::MoePair;
use crate::harness::catalogue::{self, Catalogue, shape_settings};
use crate::harness::request::{DEFAULT_DTYPE, DEFAULT_RANKS, DEFAULT_TOKENS, Request, Scope};
use crate::harness::tune::Tuned;
use crate::input::InputError;
use crate::models::{self, Model};

use super::App;
use super::args::{Selection, Wanted};

/// What a selection could be, for errors.
const WAYS: &str = "--model NAME, --hf-config FILE, --hidden H --experts E --topk K, \
                    --family NAME FIELD=VALUE.., or the name of a variant";

impl Selection {
    /// Whether nothing at all is selected.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.family.is_none() && !self.is_moe()
    }

    /// Whether an MoE problem is selected.
    pub fn is_moe(&self) -> bool {
        self.model.is_some()
            || self.hf_config.is_some()
            || self.hidden.is_some()
            || self.experts.is_some()
            || self.topk.is_some()
    }

    /// The table that `--tuned` names; `otherwise` if it names none.
    pub fn tuned(&self, otherwise: impl FnOnce() -> Option<Tuned>) -> Result<Option<Tuned>, InputError> {
        match self.tuned.as_deref() {
            None => Ok(otherwise()),
            Some("none") => Ok(None),
            Some(name) => Tuned::named(name, &[&MoePair]).map(Some),
        }
    }

    /// The requests, one for each variant name or else one only.
    pub fn requests(&self) -> Result<Vec<Request>, InputError> {
        let tuning = self.tuning()?;
        if let Some(family) = &self.family {
            let key = self.items.iter().map(|i| pair(i, "--family")).collect::<Result<Vec<_>, _>>()?;
            let key = key.into_iter().chain(self.flags()).collect();
            let label = models::slug(family);
            let scope = Scope::Family(family.clone());
            return Ok(self.phases(Request { label, origin: None, scope, key, tuning }));
        }
        if self.is_moe() {
            if let Some(item) = self.items.first() {
                let with = "--model, --hf-config or --hidden";
                return Err(InputError::conflict("VARIANT", item, with, "one way to select"));
            }
            return Ok(self.phases(self.moe(tuning)?));
        }
        if self.items.is_empty() {
            return Err(InputError::missing("selection", WAYS));
        }
        let requests: Result<Vec<_>, _> = self.items.iter().map(|item| self.variant(item, &tuning)).collect();
        Ok(requests?.into_iter().flat_map(|r| self.phases(r)).collect())
    }

    /// One request, or with `--phase split` one for each half.
    fn phases(&self, request: Request) -> Vec<Request> {
        let phases: &[&str] = match self.phase.as_deref() {
            None => return vec![request],
            Some("split") => &["send", "recv"],
            Some(phase) => &[phase],
        };
        let in_phase = |phase: &&str| {
            let mut request = request.clone();
            request.tuning.push(("phase".into(), (*phase).into()));
            request
        };
        phases.iter().map(in_phase).collect()
    }

    /// The request for a variant by its name.
    fn variant(&self, name: &str, tuning: &[(String, String)]) -> Result<Request, InputError> {
        if name.contains('=') {
            return Err(InputError::missing("--family", format!("the family that `{name}` is for")));
        }
        let scope = Scope::Variant(name.to_owned());
        let (label, tuning) = (name.to_owned(), tuning.to_vec());
        Ok(Request { label, origin: None, scope, key: self.flags(), tuning })
    }

    fn moe(&self, tuning: Vec<(String, String)>) -> Result<Request, InputError> {
        let (label, shape) = match self.known_model()? {
            Some(model) => (model.name, shape_settings(&model.shape)),
            None => self.given_shape()?,
        };
        let defaults = [("tokens", DEFAULT_TOKENS), ("ranks", DEFAULT_RANKS), ("dtype", DEFAULT_DTYPE)];
        let given = self.flags();
        let absent = defaults.into_iter().filter(|(f, _)| !given.iter().any(|g| g.0 == *f));
        let mut key = shape;
        key.extend(given.iter().cloned());
        key.extend(absent.map(|(f, v)| (f.to_owned(), v.to_owned())));
        let origin = self.hf_config.as_ref().map(|p| p.display().to_string());
        Ok(Request { label, origin, scope: Scope::Moe, key, tuning })
    }

    fn known_model(&self) -> Result<Option<Model>, InputError> {
        match (&self.model, &self.hf_config) {
            (Some(name), _) => models::find(name).cloned().map(Some),
            (None, Some(path)) => models::from_hf_file(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// A shape by its numbers, as settings: the family says which numbers are allowed.
    fn given_shape(&self) -> Result<(String, Vec<(String, String)>), InputError> {
        let (Some(hidden), Some(experts), Some(topk)) = (&self.hidden, &self.experts, &self.topk) else {
            let fields = [("--hidden", &self.hidden), ("--experts", &self.experts), ("--topk", &self.topk)];
            let absent: Vec<&str> = fields.iter().filter(|f| f.1.is_none()).map(|f| f.0).collect();
            return Err(InputError::missing(absent.join(", "), "all of --hidden, --experts and --topk"));
        };
        let label = models::slug(&format!("h{hidden}-e{experts}-k{topk}"));
        let settings = [("hidden", hidden), ("experts", experts), ("topk", topk)];
        Ok((label, settings.map(|(f, v)| (f.to_owned(), v.clone())).into()))
    }

    /// The key fields that have a flag of their own and apply to any family.
    fn flags(&self) -> Vec<(String, String)> {
        [("tokens", &self.tokens), ("ranks", &self.ranks), ("dtype", &self.dtype)]
            .into_iter()
            .filter_map(|(field, value)| Some((field.to_owned(), value.clone()?)))
            .collect()
    }

    fn tuning(&self) -> Result<Vec<(String, String)>, InputError> {
        let mut all = self.settings.iter().map(|s| pair(s, "--set")).collect::<Result<Vec<_>, _>>()?;
        let given = [("dedup", &self.dedup), ("layout", &self.layout)];
        all.extend(given.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value.clone()?))));
        Ok(all)
    }
}

impl Wanted {
    /// What the selection and the catalogue ask for, once for each target.
    pub fn jobs(&self, app: &App) -> Result<Vec<Job>, InputError> {
        let catalogue = self.catalogue.as_deref().map(read_catalogue).transpose()?;
        let tuned = self.selection.tuned(|| None)?;
        let targets = self.targets(catalogue.as_ref())?;
        let mut requests = match &catalogue {
            Some(_) if self.selection.is_empty() => vec![],
            _ => self.selection.requests()?,
        };
        if let Some(catalogue) = catalogue {
            requests.extend(self.with_settings(catalogue)?);
        }
        let mut jobs = vec![];
        for request in &requests {
            for &target in &targets {
                let job = |variant| Job { label: request.label.clone(), variant, target };
                // What was tuned for one device says nothing of another.
                let tuned = tuned.as_ref().filter(|tuned| tuned.table().target == target);
                jobs.extend(request.resolve_tuned(app.registry(), tuned)?.0.into_iter().map(job));
            }
        }
        Ok(jobs)
    }

    /// What a catalogue asks for, with the tuning that goes for everything.
    fn with_settings(&self, catalogue: Catalogue) -> Result<Vec<Request>, InputError> {
        let selection = &self.selection;
        let phase = selection.phase.iter().map(|v| ("phase".to_owned(), v.clone()));
        if let Some((field, value)) = selection.flags().into_iter().chain(phase).next()
            && selection.is_empty()
        {
            let with = "--catalogue, which says it itself";
            return Err(InputError::conflict(format!("--{field}"), value, with, "--set, for tuning fields"));
        }
        let tuning = selection.tuning()?;
        let mut requests = catalogue.requests;
        requests.iter_mut().for_each(|r| r.tuning.extend(tuning.iter().cloned()));
        Ok(requests)
    }

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

/// A catalogue that comes with the program, or a file.
pub(super) fn read_catalogue(name: &str) -> Result<Catalogue, InputError> {
    match name {
        "builtin" => Ok(catalogue::builtin()),
        "reviewed" => Ok(catalogue::reviewed()),
        path => catalogue::read(Path::new(path)),
    }
}

pub(super) fn pair(text: &str, field: &str) -> Result<(String, String), InputError> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(InputError::not_allowed(field, text, "FIELD=VALUE")),
    }
}
