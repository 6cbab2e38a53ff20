//! What must come out of a run, and how what comes out compares with it.

use peerwarp_codegen::ir::Dtype;
use serde::Serialize;

use super::elements::decode;

/// A part of a buffer that has to hold certain values after a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// The buffer, by the name of the kernels' parameter.
    pub buffer: String,
    /// First byte.
    pub at: u64,
    /// What it is, in words: `sums`.
    pub what: String,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Type of the elements, for messages and tolerances.
    pub dtype: Dtype,
    /// How far an element may be off, `(absolute, relative)`: nothing at all, not even the sign of a zero, if none.
    pub tolerance: Option<(f64, f64)>,
}

impl Expected {
    /// The first bytes of a buffer, to the bit.
    pub fn exactly(buffer: &str, dtype: Dtype, bytes: Vec<u8>) -> Expected {
        let (buffer, what) = (buffer.to_owned(), buffer.to_owned());
        Expected { buffer, at: 0, what, bytes, dtype, tolerance: None }
    }

    /// The same, where an element may be off by at most `abs + rel * |expected|`. Floats only.
    #[must_use]
    pub fn within(self, abs: f64, rel: f64) -> Expected {
        Expected { tolerance: Some((abs, rel)), ..self }
    }

    /// The same, called something else.
    #[must_use]
    pub fn called(self, what: &str) -> Expected {
        Expected { what: what.to_owned(), ..self }
    }

    /// Compares what was found in its place, which `at` says in words.
    pub fn compare(&self, found: &[u8], at: &str, verdict: &mut Verdict) {
        if found == self.bytes {
            verdict.compared += found.len() as u64 / u64::from(self.dtype.bytes());
            return;
        }
        let place = |i: usize| format!("{at}, {} {i}", self.what);
        match self.dtype {
            Dtype::F32 | Dtype::Bf16 | Dtype::Fp16 | Dtype::Fp8 => {
                let values = |bytes: &[u8]| decode(self.dtype, bytes).into_iter().map(f64::from).collect();
                let (f, e): (Vec<f64>, Vec<f64>) = (values(found), values(&self.bytes));
                match self.tolerance {
                    Some(tolerance) => verdict.compare(f, e, tolerance, place),
                    None => {
                        let same = |i: usize| {
                            let size = self.dtype.bytes() as usize;
                            found.get(i * size..(i + 1) * size) == self.bytes.get(i * size..(i + 1) * size)
                        };
                        verdict.compare_bits(&f, &e, same, place);
                    }
                }
            }
            Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 => {
                let size = self.dtype.bytes() as usize;
                let value = |bytes: &[u8]| -> Vec<f64> {
                    bytes.chunks(size).map(|b| integer(self.dtype, b)).collect()
                };
                let (f, e) = (value(found), value(&self.bytes));
                let same = |i: usize| {
                    found.get(i * size..(i + 1) * size) == self.bytes.get(i * size..(i + 1) * size)
                };
                verdict.compare_bits(&f, &e, same, place);
            }
        }
    }
}

/// An integer of some type, as a number for messages.
fn integer(dtype: Dtype, bytes: &[u8]) -> f64 {
    let mut word = [0; 8];
    word[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    match dtype {
        Dtype::I32 => f64::from(i32::from_le_bytes([word[0], word[1], word[2], word[3]])),
        _ => u64::from_le_bytes(word) as f64,
    }
}

/// How a result compares with the reference's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Elements compared.
    pub compared: u64,
    /// Elements out of tolerance.
    pub wrong: u64,
    /// Largest absolute difference.
    pub max_abs_err: f64,
    /// Largest relative difference, of elements that are not all but zero.
    pub max_rel_err: f64,
    /// The first element out of tolerance, in words.
    pub first_wrong: Option<String>,
}

impl Verdict {
    /// Whether all is within tolerance.
    pub fn ok(&self) -> bool {
        self.wrong == 0
    }

    /// Compares two lists element by element: `same` says whether the bits of an element agree.
    pub fn compare_bits(
        &mut self,
        found: &[f64],
        expected: &[f64],
        same: impl Fn(usize) -> bool,
        place: impl Fn(usize) -> String,
    ) {
        for i in 0..found.len().max(expected.len()) {
            let of = |list: &[f64]| list.get(i).copied().unwrap_or(f64::NAN);
            let (f, e) = (of(found), of(expected));
            self.compared += 1;
            if same(i) {
                continue;
            }
            self.off(f, e, 0.0);
            self.wrong += 1;
            self.first_wrong.get_or_insert_with(|| format!("{}: {f} where {e} is right", place(i)));
        }
    }

    /// Notes how far an element is off; the difference.
    fn off(&mut self, found: f64, expected: f64, abs: f64) -> f64 {
        let off = (found - expected).abs();
        let off = if off.is_nan() { f64::INFINITY } else { off };
        self.max_abs_err = self.max_abs_err.max(off);
        if expected.abs() > abs {
            self.max_rel_err = self.max_rel_err.max(off / expected.abs());
        }
        off
    }

    /// Notes something wrong that is no element: what a host's step found, say.
    pub fn wrong(&mut self, what: String) {
        self.wrong += 1;
        self.first_wrong.get_or_insert(what);
    }

    /// Both together; of two first wrong elements this one's.
    pub fn merge(&mut self, other: Verdict) {
        self.compared += other.compared;
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
        self.max_abs_err = self.max_abs_err.max(other.max_abs_err);
        self.max_rel_err = self.max_rel_err.max(other.max_rel_err);
    }

    /// Compares two lists of numbers. An element is right if it differs by at most `abs + rel * |expected|`; two NaNs
    /// agree. `place` says where an element is, for messages.
    pub fn compare(
        &mut self,
        found: impl IntoIterator<Item = f64>,
        expected: impl IntoIterator<Item = f64>,
        (abs, rel): (f64, f64),
        place: impl Fn(usize) -> String,
    ) {
        let (mut found, mut expected) = (found.into_iter(), expected.into_iter());
        for i in 0.. {
            let (f, e) = match (found.next(), expected.next()) {
                (None, None) => return,
                (f, e) => (f.unwrap_or(f64::NAN), e.unwrap_or(f64::NAN)),
            };
            self.compared += 1;
            if f == e || f.is_nan() && e.is_nan() {
                continue;
            }
            let off = self.off(f, e, abs);
            // False for a NaN on either side.
            let within = off <= abs + rel * e.abs();
            if !within {
                self.wrong += 1;
                self.first_wrong.get_or_insert_with(|| format!("{}: {f} where {e} is right", place(i)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(found: &[f64], expected: &[f64], tolerance: (f64, f64)) -> Verdict {
        let mut verdict = Verdict::default();
        let all = |list: &[f64]| list.to_vec();
        verdict.compare(all(found), all(expected), tolerance, |i| format!("element {i}"));
        verdict
    }

    #[test]
    fn elements_within_tolerance_are_right() {
        let v = compare(&[1.0, 2.1, 0.0, f64::NAN], &[1.0, 2.0, 0.001, f64::NAN], (0.01, 0.05));
        assert!(v.ok(), "{v:?}");
        assert_eq!(v.compared, 4);
        assert!((v.max_abs_err - 0.1).abs() < 1e-9 && (v.max_rel_err - 0.05).abs() < 1e-9, "{v:?}");
    }

    #[test]
    fn elements_out_of_tolerance_are_counted_and_the_first_is_reported() {
        let v = compare(&[1.0, 2.2, 7.0], &[1.0, 2.0, 1.0], (0.0, 0.05));
        assert_eq!((v.ok(), v.wrong), (false, 2));
        assert_eq!(v.first_wrong.as_deref(), Some("element 1: 2.2 where 2 is right"));
        assert_eq!((v.max_abs_err, v.max_rel_err), (6.0, 6.0));
    }

    #[test]
    fn missing_elements_and_nans_are_wrong() {
        assert_eq!(compare(&[1.0], &[1.0, 2.0], (9.0, 9.0)).wrong, 1);
        assert_eq!(compare(&[1.0, 2.0], &[1.0], (9.0, 9.0)).wrong, 1);
        let v = compare(&[f64::NAN, f64::INFINITY], &[0.0, 1.0], (9.0, 9.0));
        assert_eq!((v.wrong, v.max_abs_err), (2, f64::INFINITY));
    }
}
