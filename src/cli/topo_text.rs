//! What `topo` prints for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::harness::topo::{Algorithm, Between, LinkClass, Rates, Table, Topo, Way, WorldSums};
use crate::harness::workload::{Predicted, PredictedTable};

use super::output::{Style, bytes, table};

/// A machine, with all paths and times if `explain`.
pub(super) fn text(topo: &Topo, explain: bool, style: Style) -> String {
    let about = if topo.about.is_empty() { String::new() } else { format!(": {}", topo.about) };
    let mut text = format!("{:<9}{}{about}\n{:<9}{}\n", "machine", topo.machine, "GPUs", gpus(&topo.gpus));
    for note in &topo.notes {
        writeln!(text, "{:<9}{note}", "note").expect("string");
    }
    for (number, matrix) in topo.tables().iter().enumerate() {
        section(&mut text, style, &format!("{}, from row to column", matrix.title));
        text += &self::matrix(matrix);
        if number == 0 {
            text += &legend(topo);
        }
    }
    if topo.patterns.is_some() || topo.measured.is_some() {
        section(&mut text, style, "All that a GPU sends, GB/s");
        text += &spread(topo);
    }
    copies(&mut text, topo, style);
    cards(&mut text, topo, style);
    nodes(&mut text, topo, style);
    if explain {
        paths(&mut text, topo, style);
    }
    sums(&mut text, topo, explain, style);
    text
}

/// A prediction, with its notes and tables.
pub(super) fn prediction(predicted: &Predicted, style: Style) -> String {
    let mut text = format!("{}\n", style.bold(&predicted.title));
    for note in &predicted.notes {
        writeln!(text, "{:<9}{note}", "note").expect("string");
    }
    for PredictedTable { title, head, rows } in &predicted.tables {
        section(&mut text, style, title);
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        text += &table(&head, rows.iter().cloned());
    }
    text
}

fn section(text: &mut String, style: Style, title: &str) {
    writeln!(text, "\n{}", style.bold(title)).expect("string");
}

fn gpus(names: &[String]) -> String {
    match names.split_first() {
        Some((first, rest)) if rest.iter().all(|name| name == first) => format!("{} x {first}", names.len()),
        _ => names.iter().enumerate().map(|(at, name)| format!("{at} {name}")).collect::<Vec<_>>().join(", "),
    }
}

fn matrix(matrix: &Table) -> String {
    let names: Vec<String> = (0..matrix.rows.len()).map(|gpu| format!("gpu{gpu}")).collect();
    let head: Vec<&str> = std::iter::once("").chain(names.iter().map(String::as_str)).collect();
    let row = |(name, row): (&String, &Vec<String>)| {
        std::iter::once(name.clone()).chain(row.iter().cloned()).collect()
    };
    table(&head, names.iter().zip(&matrix.rows).map(row))
}

/// What the classes are.
fn legend(topo: &Topo) -> String {
    let mut classes: Vec<LinkClass> = topo.links.iter().filter_map(|link| link.class).collect();
    classes.sort();
    classes.dedup();
    let line = |class: &LinkClass| format!("  {:<6}{}\n", class.to_string(), class.words());
    let mut text: String = classes.iter().map(line).collect();
    if topo.links.iter().any(|link| link.staged) {
        text += "  *     no peer access: copies go through the host's memory, and kernels cannot\n";
    }
    text
}

/// What each GPU sends while several transfers are in flight, by the model and by each way that was measured.
fn spread(topo: &Topo) -> String {
    let number = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.1}"));
    let mut head = vec!["".to_owned()];
    let of_profile = |gpu: usize, all: bool, way: Way| {
        let gpu = &topo.measured.as_ref()?.gpus[gpu];
        let rates: &Rates = if all { &gpu.all_to_all } else { &gpu.one_to_all };
        rates.of(way)
    };
    let ways: Vec<Way> = Way::ALL.into_iter().filter(|way| of_profile(0, false, *way).is_some()).collect();
    for pattern in ["one to all", "all to all"] {
        head.extend(topo.patterns.iter().map(|_| format!("{pattern}, model")));
        head.extend(ways.iter().map(|way| format!("{pattern}, {}", way.name())));
    }
    let row = |gpu: usize| {
        let mut row = vec![format!("gpu{gpu}")];
        for all in [false, true] {
            let model =
                topo.patterns.as_ref().map(|p| if all { p.all_to_all[gpu] } else { p.one_to_all[gpu] });
            row.extend(model.map(|gbps| number(Some(gbps))));
            row.extend(ways.iter().map(|way| number(of_profile(gpu, all, *way))));
        }
        row
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    table(&head, (0..topo.gpus.len()).map(row))
}

fn copies(text: &mut String, topo: &Topo, style: Style) {
    let Some(copies) = &topo.copies else { return };
    let title =
        format!("A copy of {} ({} bytes) from GPU {}", bytes(copies.bytes), copies.bytes, copies.from);
    section(text, style, &title);
    let ms = |us: f64| format!("{:.1}", us / 1e3);
    let rows = copies.copies.iter().map(|copy| {
        let gbps = format!("{:.1}", copy.gbps);
        let over = if copy.staged {
            format!("{}, through the host", copy.class.words())
        } else {
            copy.class.words()
        };
        vec![copy.to.to_string(), ms(copy.alone_us), ms(copy.together_us), gbps, over, copy.stops.join(" > ")]
    });
    *text += &table(&["to GPU", "ms alone", "ms all at once", "GB/s", "over", "path"], rows);
    if copies.copies.iter().any(|copy| copy.staged) {
        *text += "  through the host: without peer access the driver brings bytes to host memory and from there on; what that gets\n  \
                  differs by driver and machine, and is an assumption of the machine's description\n";
    }
}

/// The network cards of this machine, and what is between each and the GPUs.
fn cards(text: &mut String, topo: &Topo, style: Style) {
    let Some(profile) = topo.measured.as_ref().filter(|profile| !profile.cards.is_empty()) else { return };
    section(text, style, "Network cards, as the system lists them: nothing of them is measured");
    let names: Vec<String> = (0..profile.gpus.len()).map(|gpu| format!("gpu{gpu}")).collect();
    let head: Vec<&str> =
        ["card", "Gb/s", "on", "state"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let rows = profile.cards.iter().map(|card| {
        let gbit = card.gbit.map_or_else(|| "-".to_owned(), |gbit| format!("{gbit:.0}"));
        let state = if card.is_active { "active" } else { "down" };
        let own = [card.name.clone(), gbit, card.layer.clone(), state.to_owned()];
        own.into_iter().chain(card.to_gpus.iter().map(LinkClass::to_string)).collect()
    });
    *text += &table(&head, rows);
}

/// What puts to other nodes take.
fn nodes(text: &mut String, topo: &Topo, style: Style) {
    let Some(Between { nodes, gpus, credit_us, puts }) = &topo.nodes else { return };
    let title = format!(
        "Between {} nodes of {gpus} GPUs: {} rails, {} {} a GPU",
        nodes.count,
        nodes.rails,
        nodes.cards_a_gpu(*gpus),
        nodes.nic.name
    );
    section(text, style, &title);
    let us = |us: f64| format!("{us:.1}");
    let rows = puts
        .iter()
        .map(|put| vec![bytes(put.bytes), us(put.arrive_us), us(put.settle_us), us(put.all_arrive_us)]);
    *text += &table(&["a put", "us until counted", "us until locally complete", "us if all GPUs put"], rows);
    writeln!(text, "  a credit takes {credit_us:.1} us; by the model, no card was used").expect("string");
}

/// A path for each class of links.
fn paths(text: &mut String, topo: &Topo, style: Style) {
    section(text, style, "Paths");
    let mut of_class = BTreeMap::new();
    for link in &topo.links {
        if let Some(class) = link.class {
            let pairs: &mut Vec<_> = of_class.entry((class, link.staged)).or_default();
            pairs.push(link);
        }
    }
    for ((class, staged), links) in of_class {
        let first = links[0];
        let host = if staged { ", through the host's memory" } else { "" };
        let gbps = first.gbps.unwrap_or_default();
        let pairs = if links.len() == 1 { "1 pair".to_owned() } else { format!("{} pairs", links.len()) };
        writeln!(
            text,
            "{class:<6} {pairs}, as {}: {}{host}, {gbps:.1} GB/s",
            first.stops.join(" > "),
            class.words()
        )
        .expect("string");
    }
}

fn sums(text: &mut String, topo: &Topo, explain: bool, style: Style) {
    if topo.sums.is_empty() {
        return;
    }
    section(text, style, "The fastest way to sum over all GPUs (all-reduce), by bytes of each");
    let rows = topo.sums.iter().flat_map(|sums| {
        sums.fastest.iter().map(|range| {
            let up_to = range.up_to.map_or_else(|| "any".to_owned(), bytes);
            vec![sums.world.to_string(), bytes(range.from), up_to, range.algorithm.name().to_owned()]
        })
    });
    *text += &table(&["GPUs", "from", "up to", "algorithm"], rows);
    if !explain {
        return;
    }
    for algorithm in Algorithm::ALL {
        writeln!(text, "  {:<28}{}", algorithm.name(), algorithm.words()).expect("string");
    }
    topo.sums.iter().for_each(|sums| times(text, sums, style));
}

/// What each way takes, and why.
fn times(text: &mut String, sums: &WorldSums, style: Style) {
    section(text, style, &format!("Microseconds on {} GPUs, by bytes of each", sums.world));
    let sizes: Vec<u64> = sums.times.iter().flat_map(|t| t.by_bytes.keys().copied()).take(6).collect();
    let names: Vec<String> = sizes.iter().map(|size| bytes(*size)).collect();
    let mut head = vec!["algorithm", "steps"];
    head.extend(names.iter().map(String::as_str));
    head.extend(["busiest link", "its bytes / bytes"]);
    let mut staged = false;
    let rows: Vec<Vec<String>> = sums
        .times
        .iter()
        .filter_map(|t| {
            let (bytes, last) = t.by_bytes.last_key_value()?;
            staged |= last.staged;
            let mark = if last.staged { "*" } else { "" };
            let mut row = vec![format!("{}{mark}", t.algorithm.name()), last.steps.to_string()];
            row.extend(t.by_bytes.values().map(|p| format!("{:.1}", p.us)));
            row.extend([last.busiest.clone(), format!("{:.2}", last.busiest_bytes / *bytes as f64)]);
            Some(row)
        })
        .collect();
    *text += &table(&head, rows);
    if staged {
        *text += "  * part of the way leads through host memory, which copies can take and kernels cannot\n";
    }
}
