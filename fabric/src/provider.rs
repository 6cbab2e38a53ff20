//! Which of libfabric's providers carries puts.

use std::fmt;
use std::str::FromStr;

use crate::error::FabricError;

/// The variable by which users of libfabric choose a provider.
pub const PROVIDER_VARIABLE: &str = "FI_PROVIDER";

/// A provider that carries puts with a count, the best one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// Elastic Fabric Adapter.
    Efa,
    /// InfiniBand and RoCE: `verbs;ofi_rxm`.
    Verbs,
    /// Slingshot. Its puts carry a count from libfabric 2.5 on where `FI_CXI_ENABLE_WRITEDATA` is set.
    Cxi,
    /// TCP. libfabric 1.17 calls it `net`, later versions `tcp`.
    Tcp,
    /// Shared memory of one host. In libfabric 1.17 a rank that dies may hold a lock for which proxies of other ranks wait for
    /// ever, so that ranks name each other; from 1.18 on they name the dead one. Each rank has a process of its own: between busy endpoints
    /// of one process libfabric 2.6 crashes, in `smr_ep_progress`.
    Shm,
}

impl Provider {
    /// All of them, the best one first.
    pub const ALL: [Provider; 5] =
        [Provider::Efa, Provider::Verbs, Provider::Cxi, Provider::Tcp, Provider::Shm];

    /// Its name in libfabric of this version.
    pub(crate) fn name(self, (major, minor): (u32, u32)) -> &'static str {
        match self {
            Provider::Efa => "efa",
            Provider::Verbs => "verbs;ofi_rxm",
            Provider::Cxi => "cxi",
            Provider::Tcp if (major, minor) < (1, 18) => "net",
            Provider::Tcp => "tcp",
            Provider::Shm => "shm",
        }
    }

    /// What `FI_PROVIDER` asks for, if it is set.
    ///
    /// # Errors
    /// [`FabricError::Provider`] if it names no provider that carries puts.
    pub fn from_environment() -> Result<Option<Provider>, FabricError> {
        let given = std::env::var(PROVIDER_VARIABLE).unwrap_or_default();
        if given.is_empty() { Ok(None) } else { given.parse().map(Some) }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name((2, 0)))
    }
}

impl FromStr for Provider {
    type Err = FabricError;

    fn from_str(given: &str) -> Result<Provider, FabricError> {
        match given {
            "efa" => Ok(Provider::Efa),
            "verbs" | "verbs;ofi_rxm" => Ok(Provider::Verbs),
            "cxi" => Ok(Provider::Cxi),
            "tcp" | "net" => Ok(Provider::Tcp),
            "shm" => Ok(Provider::Shm),
            _ => {
                let reason = match given {
                    "sockets" => "puts of `sockets` do not end",
                    _ if given.starts_with('^') => "a list of what to leave out names no provider",
                    _ => "",
                };
                let allowed = "efa, verbs, cxi, tcp, shm".into();
                Err(FabricError::Provider { given: given.into(), allowed, reason })
            }
        }
    }
}

/// What is known of a provider and domain on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub provider: String,
    pub domain: String,
    /// Whether its addresses are those of IPv4.
    pub ipv4: bool,
}

/// The best of the offers: its index and provider. Of several domains the first one with IPv4 addresses, else the first one.
pub(crate) fn choose(
    offers: &[Offer],
    version: (u32, u32),
    wanted: Option<Provider>,
    domain: Option<&str>,
) -> Option<(usize, Provider)> {
    let suits = |offer: &Offer| domain.is_none_or(|domain| offer.domain == domain);
    let providers = Provider::ALL.iter().filter(|p| wanted.is_none_or(|wanted| wanted == **p));
    let mut fits = providers.flat_map(|provider| {
        let named =
            offers.iter().enumerate().filter(|(_, o)| o.provider == provider.name(version) && suits(o));
        let best = named.min_by_key(|(at, offer)| (!offer.ipv4, *at));
        best.map(|(at, _)| (at, *provider))
    });
    fits.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(all: &[(&str, &str, bool)]) -> Vec<Offer> {
        let offer = |&(provider, domain, ipv4): &(&str, &str, bool)| Offer {
            provider: provider.into(),
            domain: domain.into(),
            ipv4,
        };
        all.iter().map(offer).collect()
    }

    #[test]
    fn the_best_provider_is_chosen() {
        let all = offers(&[
            ("sockets", "lo", true),
            ("shm", "shm", false),
            ("net", "eth0", false),
            ("net", "eth0", true),
            ("net", "lo", true),
            ("tcp;ofi_rxm", "eth0", true),
            ("verbs;ofi_rxm", "mlx5_0", false),
            ("verbs;ofi_rxm", "mlx5_1", false),
        ]);
        assert_eq!(choose(&all, (1, 17), None, None), Some((6, Provider::Verbs)));
        assert_eq!(choose(&all, (1, 17), None, Some("mlx5_1")), Some((7, Provider::Verbs)));
        assert_eq!(choose(&all, (1, 17), Some(Provider::Tcp), None), Some((3, Provider::Tcp)));
        assert_eq!(choose(&all, (1, 17), Some(Provider::Tcp), Some("lo")), Some((4, Provider::Tcp)));
        assert_eq!(choose(&all, (1, 17), Some(Provider::Efa), None), None);
        // Later versions have another name for it.
        assert_eq!(choose(&all, (1, 18), Some(Provider::Tcp), None), None);
        assert_eq!(
            choose(&offers(&[("sockets", "lo", true), ("tcp;ofi_rxm", "lo", true)]), (1, 17), None, None),
            None
        );
    }

    #[test]
    fn names_are_refused_by_name() {
        for provider in Provider::ALL {
            assert_eq!(provider.to_string().parse(), Ok(provider));
        }
        assert_eq!("net".parse(), Ok(Provider::Tcp));
        let words = "sockets".parse::<Provider>().unwrap_err().to_string();
        let expected = "FI_PROVIDER is `sockets`, and efa, verbs, cxi, tcp, shm are allowed: puts of `sockets` do not end";
        assert_eq!(words, expected);
        assert!("^shm".parse::<Provider>().is_err());
    }
}
