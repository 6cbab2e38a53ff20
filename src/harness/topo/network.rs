//! A machine as transfers see it: resources with capacities, and a route of each GPU to each other one.

use std::collections::BTreeMap;

use super::class::LinkClass;
use super::describe::{Description, End, HubKind, LinkKind, Times};
use super::flow::{self, Flow};
use super::nodes::Nodes;

/// What transfers share: a link, in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// What it is: `gpu0 -> switch0`.
    pub name: String,
    /// GB/s.
    pub gbps: f64,
}

/// How data gets from one GPU to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// What joins them.
    pub class: LinkClass,
    /// What it takes, by number.
    pub path: Vec<usize>,
    /// Where it passes, both ends included.
    pub stops: Vec<String>,
    /// A packet's way, in microseconds.
    pub latency_us: f64,
    /// If there is no peer access: the most that a copy through the host's memory gets, in GB/s.
    pub staged_gbps: Option<f64>,
}

/// Bytes that go from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// The GPU that has them.
    pub from: usize,
    /// The GPU that gets them.
    pub to: usize,
    /// How many.
    pub bytes: f64,
}

/// No way from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no path from GPU {from} to GPU {to}")]
pub struct NoPath {
    /// The one.
    pub from: usize,
    /// The other.
    pub to: usize,
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// What it is called.
    pub name: String,
    /// What it is, in one line.
    pub about: String,
    /// Names of the GPUs.
    pub gpus: Vec<String>,
    /// What launches take.
    pub times: Times,
    /// More nodes like it.
    pub nodes: Option<Nodes>,
    /// What transfers share.
    pub resources: Vec<Resource>,
    /// `[from][to]`; none where there is no path, and from a GPU to itself.
    pub routes: Vec<Vec<Option<Route>>>,
}

impl Network {
    /// The route of one GPU to another.
    ///
    /// # Errors
    /// There is none.
    pub fn route(&self, from: usize, to: usize) -> Result<&Route, NoPath> {
        self.routes[from][to].as_ref().ok_or(NoPath { from, to })
    }

    /// What a transfer gets that has the machine to itself, in GB/s.
    ///
    /// # Errors
    /// There is no route.
    pub fn gbps(&self, from: usize, to: usize) -> Result<f64, NoPath> {
        let route = self.route(from, to)?;
        let narrowest = route.path.iter().map(|&r| self.resources[r].gbps);
        Ok(narrowest.fold(route.staged_gbps.unwrap_or(f64::INFINITY), f64::min))
    }

    /// When each of these transfers has ended, in microseconds after all have begun.
    ///
    /// # Errors
    /// One of them has no route.
    pub fn ends(&self, transfers: &[Transfer]) -> Result<Vec<f64>, NoPath> {
        let flows = self.flows(transfers)?;
        let ends = flow::ends(&self.capacities(), &flows);
        let with_latency = |(t, end): (&Transfer, f64)| Ok(end + self.route(t.from, t.to)?.latency_us);
        transfers.iter().zip(ends).map(with_latency).collect()
    }

    fn capacities(&self) -> Vec<f64> {
        self.resources.iter().map(|r| r.gbps).collect()
    }

    fn flows(&self, transfers: &[Transfer]) -> Result<Vec<Flow>, NoPath> {
        let flow = |t: &Transfer| {
            let route = self.route(t.from, t.to)?;
            let most = route.staged_gbps.unwrap_or(f64::INFINITY);
            Ok(Flow { path: route.path.clone(), most, bytes: t.bytes })
        };
        transfers.iter().map(flow).collect()
    }

    /// All ordered pairs of different GPUs.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let count = self.gpus.len();
        (0..count).flat_map(move |from| (0..count).filter(move |&to| to != from).map(move |to| (from, to)))
    }
}

/// A link in one direction.
#[derive(Clone, Copy, Debug)]
struct Edge {
    from: usize,
    to: usize,
    kind: LinkKind,
    links: u32,
    gbps: f64,
    latency_us: f64,
    staged_gbps: Option<f64>,
}

impl From<&Description> for Network {
    /// Of a description that was checked.
    fn from(d: &Description) -> Network {
        let ends = d.ends("").unwrap_or_default();
        let count = d.gpus as usize;
        let mut names: Vec<String> = (0..count).map(|gpu| format!("gpu{gpu}")).collect();
        names.extend(ends.keys().filter(|name| ends[*name] != End::Gpu).cloned());
        let graph = Graph { kinds: names.iter().map(|name| ends[name]).collect(), edges: edges(d, &names) };
        let resources = graph
            .edges
            .iter()
            .map(|e| Resource { name: format!("{} -> {}", names[e.from], names[e.to]), gbps: e.gbps });
        let route = |from, to| if from == to { None } else { graph.route(from, to, &names) };
        Network {
            name: d.name.clone(),
            about: d.about.clone(),
            gpus: vec![d.gpu.clone(); count],
            times: d.times,
            nodes: d.nodes.clone(),
            resources: resources.collect(),
            routes: (0..count).map(|from| (0..count).map(|to| route(from, to)).collect()).collect(),
        }
    }
}

fn edges(d: &Description, names: &[String]) -> Vec<Edge> {
    let number: BTreeMap<&str, usize> = names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    let mut edges = vec![];
    for links in &d.links {
        for (a, b) in &links.between {
            let (from, to) = (number[a.as_str()], number[b.as_str()]);
            let gbps = f64::from(links.links) * links.gbps;
            let (kind, latency_us, staged_gbps) = (links.kind, links.latency_us, links.staged_gbps);
            let edge = Edge { from, to, kind, links: links.links, gbps, latency_us, staged_gbps };
            edges.push(edge);
            if !links.one_way {
                edges.push(Edge { from: to, to: from, ..edge });
            }
        }
    }
    edges
}

/// GPUs first, then hubs.
struct Graph {
    kinds: Vec<End>,
    edges: Vec<Edge>,
}

/// Which links a route may take: those made for GPUs before PCIe, and the host's memory last.
const LEVELS: [fn(&Edge) -> bool; 3] =
    [|e| matches!(e.kind, LinkKind::Nvlink | LinkKind::Xgmi), |e| e.staged_gbps.is_none(), |_| true];

/// The best path to a node so far.
#[derive(Clone, Copy)]
struct Reached {
    /// Links and latency.
    cost: (usize, f64),
    /// The last edge, if there is one.
    last: Option<usize>,
}

impl Graph {
    /// The widest route of the first level that has one; of those the one with the fewest links, then the fastest.
    fn route(&self, from: usize, to: usize, names: &[String]) -> Option<Route> {
        LEVELS.iter().find_map(|allowed| {
            let mut widths: Vec<f64> = self.edges.iter().filter(|e| allowed(e)).map(|e| e.gbps).collect();
            widths.sort_by(|a, b| b.total_cmp(a));
            widths.dedup();
            // There are only a few widths.
            let found = |width: &f64| self.shortest(from, to, &|e| allowed(e) && e.gbps >= *width);
            widths.iter().find_map(found).map(|path| self.described(path, from, names))
        })
    }

    /// Edges of the path with the fewest links, and of these the one with the least latency. No path goes through a GPU.
    fn shortest(&self, from: usize, to: usize, allowed: &dyn Fn(&Edge) -> bool) -> Option<Vec<usize>> {
        let mut best: Vec<Option<Reached>> = vec![None; self.kinds.len()];
        best[from] = Some(Reached { cost: (0, 0.0), last: None });
        for _ in 0..self.kinds.len() {
            let mut changed = false;
            for (number, e) in self.edges.iter().enumerate().filter(|(_, e)| allowed(e)) {
                let through = e.from == from || self.kinds[e.from] != End::Gpu;
                let Some(Reached { cost: (hops, us), .. }) = best[e.from].filter(|_| through) else {
                    continue;
                };
                let cost = (hops + 1, us + e.latency_us);
                if best[e.to].is_none_or(|known| cost < known.cost) {
                    best[e.to] = Some(Reached { cost, last: Some(number) });
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        let mut path = vec![];
        let mut at = to;
        while at != from {
            let last = best[at]?.last?;
            path.push(last);
            at = self.edges[last].from;
        }
        path.reverse();
        Some(path)
    }

    fn described(&self, path: Vec<usize>, from: usize, names: &[String]) -> Route {
        let edges: Vec<Edge> = path.iter().map(|&e| self.edges[e]).collect();
        let stops = edges.iter().map(|e| names[e.to].clone());
        let stops = std::iter::once(names[from].clone()).chain(stops).collect();
        Route {
            class: self.class(&edges),
            stops,
            latency_us: edges.iter().map(|e| e.latency_us).sum(),
            staged_gbps: edges.iter().filter_map(|e| e.staged_gbps).reduce(f64::min),
            path,
        }
    }

    fn class(&self, edges: &[Edge]) -> LinkClass {
        let of = |kind| edges.iter().filter(move |e| e.kind == kind).map(|e| e.links).min();
        let through = |kind| edges.iter().any(|e| self.kinds[e.to] == End::Hub(kind));
        match (of(LinkKind::Nvlink), of(LinkKind::Xgmi), of(LinkKind::Socket)) {
            (Some(links), ..) if through(HubKind::Nvswitch) => LinkClass::NvSwitch(links),
            (Some(links), ..) => LinkClass::NvLink(links),
            (_, Some(links), _) => LinkClass::Xgmi(links),
            (.., Some(_)) => LinkClass::Sockets,
            _ if through(HubKind::Socket) => LinkClass::PcieHost,
            _ => LinkClass::PcieSwitch,
        }
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
