//! `peerwarp topo`.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::topo::{self, Description, Network, OnGpus, Probe, Profile, Topo, html, measure, steps};
use crate::harness::workload::Predicted;
use crate::input::InputError;
use crate::runtime::gpu::Gpu;
use crate::runtime::image::Images;
use crate::runtime::{Launched, RuntimeError, World, WorldOptions, gpus, together};

use super::App;
use super::args::TopoArgs;
use super::output::{Done, Failure, Pending, Progress, Style};
use super::run_gpu::{jit, profile, untested, wait_budget};
use super::topo_text::{prediction, text};

pub(super) fn topo(app: &App, args: &TopoArgs, style: Style) -> Result<Done, Failure> {
    if args.predict {
        return predicted(app, style);
    }
    // Errors of the input are reported before those of the machine, and before work that takes long.
    let described = args.machine.as_deref().map(|name| Description::named("--machine", name)).transpose()?;
    let known = args.profile.as_deref().map(profile).transpose()?;
    let copy = args.copy.as_deref().map(|text| bytes_of("--copy", text)).transpose()?;
    let bytes = bytes_of("--bytes", &args.bytes)?;
    let measures = known.is_none() && (described.is_none() || args.measure);
    let room = 4..=MOST_BYTES;
    if measures && !room.contains(&bytes) {
        let allowed = format!("4 to {MOST_BYTES} bytes: a rank has room for so many of each other one");
        return Err(InputError::not_allowed("--bytes", &args.bytes, allowed).into());
    }
    if let (false, Some(save)) = (measures, &args.save) {
        let allowed = "together with a measurement: --measure, or no --machine";
        return Err(InputError::conflict(
            "--save",
            save.display(),
            "--machine, for nothing is measured",
            allowed,
        )
        .into());
    }
    let html_to = args.html.as_deref().map(|path| Pending::new("--html", path)).transpose()?;
    let save_to = args.save.as_deref().map(|path| Pending::new("--save", path)).transpose()?;
    let wait_budget = wait_budget(args.wait_budget)?;
    let (measured, untested) = match measures {
        true => {
            here(bytes, args.iterations, wait_budget).map(|(profile, untested)| (Some(profile), untested))?
        }
        false => (known, None),
    };
    let network = network(described.as_ref(), measured.as_ref(), args.profile.as_deref())?;
    let copies = copy.map(|bytes| copies(args, &network, bytes)).transpose()?;
    if let (Some(save), Some(profile)) = (save_to, &measured) {
        save.write(profile.text().as_bytes())?;
    }
    let mut topo = Topo::new(&network, measured);
    topo.copies = copies;
    topo.notes.extend(untested.map(str::to_owned));
    if let Some(html_to) = html_to {
        html_to.write(html(&topo).as_bytes())?;
    }
    let mut json = json!({ "ok": true });
    if let (Value::Object(all), Value::Object(found)) = (&mut json, json!(topo)) {
        all.extend(found);
    }
    Ok(Done { text: text(&topo, args.explain, style), json, ok: true })
}

/// What suites predict of machines that were not measured.
fn predicted(app: &App, style: Style) -> Result<Done, Failure> {
    let all: Vec<Predicted> = app.suites().filter_map(|suite| suite.predicted()).collect();
    if all.is_empty() {
        let allowed = "a program with a family that predicts something";
        return Err(InputError::not_allowed("--predict", app.program(), allowed).into());
    }
    let text: Vec<String> = all.iter().map(|predicted| prediction(predicted, style)).collect();
    Ok(Done { text: text.join("\n"), json: json!({ "ok": true, "predicted": all }), ok: true })
}

/// The most bytes of a measured transfer: kernels count words of 4 bytes in 32 bits, and 64 ranks have room for each.
const MOST_BYTES: u64 = 256 << 20;

/// The machine that is explained: as described, or else as measured.
fn network(
    described: Option<&Description>,
    measured: Option<&Profile>,
    file: Option<&Path>,
) -> Result<Network, InputError> {
    match (described, measured) {
        (Some(machine), Some(profile)) if machine.gpus as usize != profile.gpus.len() => {
            let with = match file {
                Some(file) => format!("--profile {}, of {} GPUs", file.display(), profile.gpus.len()),
                None => format!("this machine, which has {} GPUs", profile.gpus.len()),
            };
            let value = format!("{}, of {} GPUs", machine.name, machine.gpus);
            Err(InputError::conflict("--machine", value, with, "a machine of as many GPUs"))
        }
        (Some(machine), _) => Ok(Network::from(machine)),
        (None, Some(profile)) => Ok(Network::from(profile)),
        (None, None) => Err(InputError::missing("--machine", "a machine, if nothing is measured")),
    }
}

fn copies(args: &TopoArgs, network: &Network, bytes: u64) -> Result<topo::Copies, InputError> {
    let count = network.gpus.len();
    let gpu = |field: &str, gpu: usize| match gpu < count {
        true => Ok(()),
        false => Err(InputError::not_allowed(
            field,
            gpu,
            format!("0 to {}, the GPUs of {}", count - 1, network.name),
        )),
    };
    gpu("--from", args.from)?;
    args.to.iter().try_for_each(|&to| gpu("--to", to))?;
    for (at, to) in args.to.iter().enumerate() {
        if *to == args.from || args.to[..at].contains(to) {
            return Err(InputError::not_allowed(
                "--to",
                to,
                format!("GPUs other than --from {}, each once", args.from),
            ));
        }
    }
    topo::copies(network, args.from, &args.to, bytes)
        .map_err(|e| InputError::not_allowed("--to", e.to, format!("GPUs that it can reach: {e}")))
}

/// Measures the GPUs that this process sees.
fn here(
    bytes: u64,
    iterations: u32,
    wait_budget: std::time::Duration,
) -> Result<(Profile, Option<&'static str>), Failure> {
    if let Some(launched) = Launched::here()? {
        let with = format!("a process for each rank, as {} started them", launched.launcher);
        return Err(InputError::conflict(
            "topo",
            "this machine",
            with,
            "one process, which measures all GPUs",
        )
        .into());
    }
    let gpus = gpus()?;
    if gpus.len() < 2 {
        let (backend, found) = (gpus[0].info().target.backend(), gpus.len() as u32);
        return Err(RuntimeError::TooFewGpus { backend, found, needed: 2 }.into());
    }
    let options = WorldOptions { wait_budget, ..WorldOptions::default() };
    // Without a world copies are measured all the same.
    let world = reachable(&gpus)?.then(|| World::of_gpus(&gpus, &options)).transpose()?.map(Arc::new);
    let images = world.as_ref().map(|world| jit(world)).transpose()?;
    let kernels = world.clone().zip(images.as_ref().map(|images| images as &dyn Images));
    let note = world.as_ref().and_then(|world| untested(world)).or_else(|| gpus[0].untested());
    let progress = Progress::new("measuring", steps(gpus.len()));
    let mut probe = OnGpus::new(&gpus, kernels, bytes, iterations)?;
    let measured = measure(&mut probe as &mut dyn Probe, bytes, &mut || progress.tick());
    progress.finish();
    Ok((measured?, note))
}

/// Whether all GPUs reach each other, and take the same kernels.
fn reachable(gpus: &[Arc<dyn Gpu>]) -> Result<bool, RuntimeError> {
    let mut reach = vec![vec![true; gpus.len()]; gpus.len()];
    for (from, a) in gpus.iter().enumerate() {
        for (to, b) in gpus.iter().enumerate().filter(|(to, _)| *to != from) {
            reach[from][to] = a.can_access(b.info().ordinal)? && a.info().target == b.info().target;
        }
    }
    Ok(together(gpus.len(), &|a, b| reach[a][b] && reach[b][a]).len() == gpus.len())
}

/// Units of bytes, the longest names first.
const UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// A number of bytes as people write it: `1000`, `64KiB`, `200 MiB`, `1.5GB`.
fn bytes_of(field: &str, text: &str) -> Result<u64, InputError> {
    let trimmed = text.trim();
    let unit = UNITS.iter().find_map(|(name, unit)| Some((trimmed.strip_suffix(name)?, *unit)));
    let (number, unit) = unit.unwrap_or((trimmed, 1));
    let bytes = number.trim().parse::<f64>().ok().map(|n| n * unit as f64);
    match bytes.filter(|bytes| (1.0..=1e15).contains(bytes)) {
        Some(bytes) => Ok(bytes.round() as u64),
        None => Err(InputError::not_allowed(
            field,
            text,
            "1 to 1000000000000000 bytes, as in 1000, 64KiB or 200MB",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_with_and_without_units() {
        let read = |text| bytes_of("--copy", text).ok();
        assert_eq!(
            ["1000", "64KiB", "200 MiB", "1.5GB", "7B", " 1 GiB "].map(read),
            [1000, 64 << 10, 200 << 20, 1_500_000_000, 7, 1 << 30].map(Some)
        );
        for bad in ["", "0", "-1", "x", "1XB", "nan", "1e16", "MiB"] {
            let error = bytes_of("--copy", bad).unwrap_err().to_string();
            assert!(error.contains("not allowed") && error.contains("64KiB"), "{error}");
        }
    }
}
