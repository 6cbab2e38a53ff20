//! A small kernel as an author writes it, with everything in it: a config, parameters, two roles, groups, device and
//! host control flow, variables, tiles, a parcel with its signal, waits and receipts.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::ir::{Kernel, verify};

/// How tokens are exchanged.
struct Exchange {
    ranks: u32,
    tokens: u32,
    words: u32,
    chunk: u32,
    topk: u32,
    sends: bool,
    receives: bool,
}

impl Exchange {
    /// Start and length of each chunk of a row.
    fn chunks(&self) -> impl Iterator<Item = (u32, u32)> {
        let (words, chunk) = (self.words, self.chunk);
        (0..words).step_by(chunk as usize).map(move |start| (start, chunk.min(words - start)))
    }
}

#[derive(KernelArgs)]
#[args(config = Exchange)]
struct ExchangeArgs {
    /// Rows to send.
    #[len(|c| u64::from(c.tokens * c.words))]
    x: Ptr<u32>,
    /// Owners of each token, -1 for none.
    #[len(|c| u64::from(c.tokens * c.topk))]
    ids: Ptr<i32>,
    /// How many tokens there are.
    n: Ptr<u32>,
    /// Weight of each source.
    #[len(|c| u64::from(c.ranks))]
    weights: Ptr<f32>,
    /// Rows that arrive, by source and token.
    #[len(|c| u64::from(c.ranks * c.tokens * c.words))]
    inbox: Sym<u32>,
    /// How many rows each source sends.
    #[len(|c| u64::from(c.ranks))]
    count: Sym<u32>,
    #[len(|c| u64::from(c.ranks * c.tokens))]
    row_flag: Flags,
    #[len(|c| u64::from(c.ranks))]
    count_flag: Flags,
    epoch: EpochWord,
    /// Weighted sums of the rows of all sources, by token.
    #[len(|c| u64::from(c.tokens * c.words))]
    out: Ptr<f32>,
    scale: Val<f32>,
}

/// Sends each token to its owners, and adds up what arrives.
#[kernel]
fn exchange(c: &Exchange, a: &ExchangeArgs) {
    let epoch = if c.receives { a.epoch.begin() } else { a.epoch.peek() };
    if c.sends {
        role("send", 2, |b| {
            let n = a.n.get(0);
            if b.index() == 0 {
                let mut counts = send_to(Peers::all());
                counts.put_value(&a.count, rank(), n);
                counts.signal(&a.count_flag, rank(), epoch);
            }
            b.split(2, |g| {
                for t in g.strided(n) {
                    let mut owners = var(0u64);
                    for k in 0..c.topk {
                        let id = a.ids.get(t * c.topk + k);
                        if id >= 0 {
                            owners |= bit(id.to_u32());
                        }
                    }
                    let slot = rank() * c.tokens + t;
                    let mut row = send_to(Peers::mask(owners));
                    for (start, len) in c.chunks() {
                        row.put(&a.inbox, slot * c.words + start, a.x.load(t * c.words + start, len));
                    }
                    row.signal(&a.row_flag, slot, epoch);
                }
            });
        });
    }
    if c.receives {
        role("recv", 4, |b| {
            let all = a.count_flag.wait_all(0, c.ranks, 1, epoch);
            let first = shared::<u32>("first", c.ranks);
            let counts = a.count.load(&all, 0, c.ranks);
            first.store(0, counts.scan_sum(true));
            for t in b.strided(c.tokens) {
                let mut acc = var(splat(0.0, c.words));
                for src in 0..c.ranks {
                    if t < a.count.get(&all, src) && first.get(src) < 1000 {
                        let slot = src * c.tokens + t;
                        let got = a.row_flag.from(src).wait(slot, epoch);
                        let row = a.inbox.load(&got, slot * c.words, c.words).bitcast::<f32>();
                        acc = row.fma(a.weights.get(src) * a.scale, acc);
                    }
                }
                // Halve until nothing is above 1000, at most ten times.
                let mut rounds = var(0u32);
                while acc.get().abs().max() > 1000.0 {
                    rounds += 1;
                    if rounds > 10 {
                        break;
                    }
                    acc = acc * 0.5;
                }
                a.out.store(t * c.words, acc);
            }
        });
    }
}

fn traced(sends: bool, receives: bool) -> Kernel {
    let config = Exchange { ranks: 4, tokens: 16, words: 40, chunk: 32, topk: 2, sends, receives };
    let kernel = trace_args::<ExchangeArgs>(TraceMeta::new("exchange", 4, 32, 4), &config, exchange);
    let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
    verify(&kernel).unwrap_or_else(|e| panic!("{e:?}\n{kernel}"));
    kernel
}

#[test]
fn a_kernel_with_everything() {
    let text = traced(true, true).to_string();
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(text) });
}

#[test]
fn a_config_takes_one_half_of_it() {
    let roles = |k: &Kernel| k.roles.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
    let (send, receive) = (traced(true, false), traced(false, true));
    assert_eq!(roles(&send), ["send"]);
    assert_eq!(roles(&receive), ["recv"]);
    assert!(!send.to_string().contains("advance"), "only the second half advances the epoch");
    assert!(receive.to_string().contains("epoch @epoch, advance"));
}
