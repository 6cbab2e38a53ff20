//! What transfers on a machine should take: copies from one GPU, and all GPUs at once.

use serde::Serialize;

use super::class::LinkClass;
use super::network::{Network, NoPath, Transfer};

/// A copy from one GPU to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Copy {
    /// Where it goes.
    pub to: usize,
    /// What joins the two.
    pub class: LinkClass,
    /// Where it passes.
    pub stops: Vec<String>,
    /// Whether it goes through the host's memory, for want of peer access.
    pub staged: bool,
    /// GB/s that it gets by itself.
    pub gbps: f64,
    /// Microseconds that it takes by itself.
    pub alone_us: f64,
    /// And while the other ones are in flight.
    pub together_us: f64,
}

/// Copies of the same bytes from one GPU to others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Copies {
    /// Where they come from.
    pub from: usize,
    /// How many bytes.
    pub bytes: u64,
    /// One for each GPU that they go to.
    pub copies: Vec<Copy>,
}

/// Copies from one GPU to these others, each by itself and all at once.
///
/// # Errors
/// There is no path.
pub fn copies(network: &Network, from: usize, to: &[usize], bytes: u64) -> Result<Copies, NoPath> {
    let transfers: Vec<Transfer> = to.iter().map(|&to| Transfer { from, to, bytes: bytes as f64 }).collect();
    let together = network.ends(&transfers)?;
    let copy = |(transfer, together_us): (&Transfer, f64)| {
        let route = network.route(from, transfer.to)?;
        Ok(Copy {
            to: transfer.to,
            class: route.class,
            stops: route.stops.clone(),
            staged: route.staged_gbps.is_some(),
            gbps: network.gbps(from, transfer.to)?,
            alone_us: network.ends(&[*transfer])?[0],
            together_us,
        })
    };
    let copies = transfers.iter().zip(together).map(copy).collect::<Result<_, NoPath>>()?;
    Ok(Copies { from, bytes, copies })
}

/// What each GPU sends while several transfers are in flight, in GB/s: all that it sends, until the last of it has arrived.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Patterns {
    /// It alone sends, as much to each other one.
    pub one_to_all: Vec<f64>,
    /// All send to all.
    pub all_to_all: Vec<f64>,
}

/// Bytes from one GPU to each other one: so many that latencies do not count.
const MANY: f64 = 1e12;

/// What each GPU gets if it alone sends to all, and if all do.
///
/// # Errors
/// There is no path.
pub fn patterns(network: &Network) -> Result<Patterns, NoPath> {
    let pairs: Vec<(usize, usize)> = network.pairs().collect();
    let of =
        |sender: usize| pairs.iter().copied().filter(move |(from, _)| *from == sender).collect::<Vec<_>>();
    let gpus = 0..network.gpus.len();
    let one_to_all = gpus.map(|gpu| Ok(rates(network, &of(gpu))?[gpu])).collect::<Result<_, NoPath>>()?;
    Ok(Patterns { one_to_all, all_to_all: rates(network, &pairs)? })
}

/// What each GPU sends while the same number of bytes goes over each of these pairs, in GB/s; 0 of those that send nothing.
fn rates(network: &Network, pairs: &[(usize, usize)]) -> Result<Vec<f64>, NoPath> {
    let transfers: Vec<Transfer> =
        pairs.iter().map(|&(from, to)| Transfer { from, to, bytes: MANY }).collect();
    let ends = network.ends(&transfers)?;
    let rate = |gpu: usize| {
        let own = || pairs.iter().zip(&ends).filter(|((from, _), _)| *from == gpu);
        let last = own().map(|(_, end)| *end).fold(0.0, f64::max);
        if last > 0.0 { own().count() as f64 * MANY / last / 1e3 } else { 0.0 }
    };
    Ok((0..network.gpus.len()).map(rate).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Description;
    use super::*;

    fn machine(name: &str) -> Network {
        Network::from(&Description::named("--machine", name).unwrap())
    }

    #[test]
    fn copies_at_once_do_not_disturb_each_other_unless_they_share_a_link() {
        let mesh = copies(&machine("dgx-1-cube-mesh"), 0, &[1, 2, 4], 200 << 20).unwrap();
        assert!(mesh.copies.iter().all(|c| (c.alone_us - c.together_us).abs() < 1e-6));
        assert_eq!(mesh.copies.iter().map(|c| c.staged).collect::<Vec<_>>(), [false, true, false]);
        // Behind one NVSwitch all leave over the same links.
        let switched = copies(&machine("h200-nvswitch-8"), 0, &[1, 2, 4], 360_000_000).unwrap();
        for copy in switched.copies {
            assert!(
                (copy.alone_us - 1000.8).abs() < 1e-6 && (copy.together_us - 3000.8).abs() < 1e-6,
                "{copy:?}"
            );
        }
    }

    #[test]
    fn what_all_send_is_what_the_links_let_through() {
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-3, "{got} is not {want}");
        let switched = patterns(&machine("h200-nvswitch-8")).unwrap();
        switched.one_to_all.iter().chain(&switched.all_to_all).for_each(|&gbps| near(gbps, 360.0));
        let meshed = patterns(&machine("mi300x-xgmi-8")).unwrap();
        meshed.all_to_all.iter().for_each(|&gbps| near(gbps, 336.0));
        // One of seven goes over the bridge, and 16 flows of each side share 20 GB/s between the sockets.
        let pairs = patterns(&machine("pcie-pairs")).unwrap();
        pairs.all_to_all.iter().for_each(|&gbps| near(gbps, 7.0 * 20.0 / 16.0));
        near(pairs.one_to_all[0], 7.0 * 25.0 / 6.0);
    }
}
