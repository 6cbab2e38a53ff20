//! Where routing comes from: drawn from a distribution, or read from a file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::families::moe::npy;
use crate::families::moe::{MoeShape, Routing};
use crate::input::{self, InputError};

/// Where routing comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Every set of distinct experts is equally likely.
    Uniform,
    /// Distinct experts, drawn in proportion to `1 / rank^s` of their popularity; which expert is how popular depends
    /// on the seed only, so all ranks agree.
    Zipf(f64),
    /// An int32 `.npy` file of shape `[ranks, tokens, topk]`; -1 masks an entry, experts may repeat.
    File(PathBuf),
}

/// The largest exponent of [`Source::Zipf`]. Beyond it the first experts get everything, and the odds of the last
/// leave the range of an `f64`.
const MAX_ZIPF: f64 = 16.0;

impl FromStr for Source {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Source, InputError> {
        const ALLOWED: &str = "uniform, zipf:S with S from 0 to 16, or a file that ends in .npy";
        let bad = || InputError::not_allowed("--routing", text, ALLOWED);
        match text.split_once(':') {
            None if text == "uniform" => Ok(Source::Uniform),
            None if text == "zipf" => Ok(Source::Zipf(1.0)),
            Some(("zipf", s)) => {
                let s: f64 = s.parse().map_err(|_| bad())?;
                if (0.0..=MAX_ZIPF).contains(&s) { Ok(Source::Zipf(s)) } else { Err(bad()) }
            }
            _ if text.to_lowercase().ends_with(".npy") => Ok(Source::File(text.into())),
            _ => {
                let mut e = bad();
                e.nearest = input::nearest(text, &["uniform", "zipf:1"]);
                Err(e)
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Uniform => f.write_str("uniform"),
            Source::Zipf(s) => write!(f, "zipf:{s}"),
            Source::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Source {
    /// Draws routing, or reads it. `counts` holds each rank's tokens; without it every rank has as many as there are in
    /// the file, or `shape.tokens`.
    pub fn routing(
        &self,
        shape: &MoeShape,
        counts: Option<&[u32]>,
        seed: u64,
    ) -> Result<Routing, InputError> {
        if shape.topk > shape.experts && !matches!(self, Source::File(_)) {
            let allowed = format!("1 to the number of experts, {}", shape.experts);
            return Err(InputError::not_allowed("--topk", shape.topk, allowed));
        }
        let file = match self {
            Source::File(path) => Some(read(path, shape)?),
            _ => None,
        };
        let most = file.as_ref().map_or(shape.tokens, |f| f.tokens as u32);
        let counts = match counts {
            Some(c) => check_counts(c, shape, most)?,
            None => vec![most; shape.ranks as usize],
        };
        Ok(match (&file, self) {
            (Some(file), _) => Routing::with_weights(shape, file.take(&counts), seed),
            (None, Source::Zipf(s)) => Routing::with_weights(shape, zipf(shape, &counts, *s, seed), seed),
            (None, _) => Routing::uniform(shape, &counts, seed),
        })
    }
}

/// Parses `--tokens-per-rank`.
pub fn parse_counts(text: &str) -> Result<Vec<u32>, InputError> {
    let one = |part: &str| {
        part.parse().map_err(|_| {
            InputError::not_allowed(
                "--tokens-per-rank",
                part,
                "whole numbers with commas between, one a rank",
            )
        })
    };
    input::list(text).map(one).collect()
}

fn check_counts(counts: &[u32], shape: &MoeShape, most: u32) -> Result<Vec<u32>, InputError> {
    const FIELD: &str = "--tokens-per-rank";
    let shown: Vec<String> = counts.iter().map(u32::to_string).collect();
    if counts.len() != shape.ranks as usize {
        let allowed = format!("one number for each of the {} ranks, not {}", shape.ranks, counts.len());
        return Err(InputError::not_allowed(FIELD, shown.join(","), allowed));
    }
    match counts.iter().position(|n| *n > most) {
        None => Ok(counts.to_vec()),
        Some(rank) => {
            let bound = if most == shape.tokens { "--tokens" } else { "the routing file's tokens" };
            let field = format!("{FIELD} of rank {rank}");
            Err(InputError::not_allowed(field, counts[rank], format!("0 to {most} ({bound})")))
        }
    }
}

/// Draws every token's experts in proportion to `1 / popularity^s`, without repetition.
fn zipf(shape: &MoeShape, counts: &[u32], s: f64, seed: u64) -> Vec<Vec<i32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut popularity: Vec<u32> = (1..=shape.experts).collect();
    popularity.shuffle(&mut rng);
    let log_odds: Vec<f64> = popularity.iter().map(|p| -s * f64::from(*p).ln()).collect();
    let mut rank =
        |n: &u32| (0..*n).flat_map(|_| weighted(&mut rng, &log_odds, shape.topk as usize)).collect();
    counts.iter().map(&mut rank).collect()
}

/// The `k` largest of log odds plus Gumbel noise are a weighted sample without repetition, in order of draw.
fn weighted(rng: &mut ChaCha8Rng, log_odds: &[f64], k: usize) -> Vec<i32> {
    let gumbel = |u: f64| -(-(1.0 - u).ln()).ln();
    let mut noisy: Vec<(f64, i32)> =
        log_odds.iter().zip(0..).map(|(odds, e)| (odds + gumbel(rng.random()), e)).collect();
    noisy.select_nth_unstable_by(k - 1, |a, b| b.0.total_cmp(&a.0));
    noisy.truncate(k);
    noisy.sort_by(|a, b| b.0.total_cmp(&a.0));
    noisy.into_iter().map(|n| n.1).collect()
}

/// A routing file that fits.
struct File {
    tokens: usize,
    topk: usize,
    data: Vec<i32>,
}

impl File {
    fn take(&self, counts: &[u32]) -> Vec<Vec<i32>> {
        let rank = self.tokens * self.topk;
        let part = |(r, n): (usize, &u32)| self.data[r * rank..][..*n as usize * self.topk].to_vec();
        counts.iter().enumerate().map(part).collect()
    }
}

/// `[ranks, tokens, topk]` of a routing file, whether or not it fits anything.
pub fn file_dims(path: &Path) -> Result<[usize; 3], InputError> {
    parse(path).map(|(dims, _)| dims)
}

/// The most bytes that a routing file may have: those of the largest problem there is, and a header.
const MOST: u64 = 64 * 65536 * 32 * 4 + (1 << 20);

fn parse(path: &Path) -> Result<([usize; 3], Vec<i32>), InputError> {
    const FORM: &str = "an int32 .npy file of shape [ranks, tokens, topk]";
    let shown = path.display();
    let bytes = input::file::read("--routing", path, MOST)?;
    let array = npy::parse(&bytes).map_err(|e| InputError::malformed("--routing", &shown, e, FORM))?;
    match array.shape[..] {
        [ranks, tokens, topk] => Ok(([ranks, tokens, topk], array.data)),
        _ => Err(InputError::not_allowed(format!("{shown}: shape"), npy::Dims(&array.shape), FORM)),
    }
}

fn read(path: &Path, shape: &MoeShape) -> Result<File, InputError> {
    let (dims, data) = parse(path)?;
    let shown = path.display();
    let [ranks, tokens, topk] = dims;
    if ranks != shape.ranks as usize || tokens > shape.tokens as usize || topk != shape.topk as usize {
        let MoeShape { ranks, tokens, topk, .. } = shape;
        let allowed =
            format!("[ranks, tokens, topk] with ranks = {ranks}, tokens up to {tokens}, topk = {topk}");
        return Err(InputError::not_allowed(format!("{shown}: shape"), npy::Dims(&dims), allowed));
    }
    if let Some(at) = data.iter().position(|id| *id < -1 || i64::from(*id) >= i64::from(shape.experts)) {
        let field = format!("{shown}: [{}, {}, {}]", at / topk / tokens, at / topk % tokens, at % topk);
        let allowed = format!("expert ids from 0 to {}, or -1 for a masked entry", shape.experts - 1);
        return Err(InputError::not_allowed(field, data[at], allowed));
    }
    Ok(File { tokens, topk, data })
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
