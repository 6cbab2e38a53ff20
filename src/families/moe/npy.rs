//! A reader for `.npy` files of int32, and a writer for the same.
//!
//! A routing file is untrusted input: the header's dimensions are multiplied with overflow checks and held against the file's length
//! before anything is allocated, and no header can make the reader panic.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// An array of int32 in C order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Elements in C order.
    pub data: Vec<i32>,
}

/// Why a file is not an int32 `.npy` file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    /// Does not begin as a `.npy` file does.
    #[error("not a .npy file (no \\x93NUMPY at its start)")]
    Magic,
    /// A format version that does not exist yet.
    #[error("format version {0}.{1} is not known")]
    Version(u8, u8),
    /// The header is not a dictionary of `descr`, `fortran_order` and `shape`.
    #[error("malformed header: {0}")]
    Header(String),
    /// Elements of another type.
    #[error("dtype is {}{}", .0, dtype_hint(.0))]
    Dtype(String),
    /// Fewer or more bytes than the header says.
    #[error("{found} bytes of data where shape {} takes {expected}", Dims(.shape))]
    Length {
        /// Shape in the header.
        shape: Vec<u64>,
        /// Bytes that the shape takes; more than there can be, if it overflows.
        expected: String,
        /// Bytes that are there.
        found: usize,
    },
}

fn dtype_hint(descr: &str) -> &'static str {
    match descr.get(1..) {
        Some("i8" | "u4" | "u8" | "i2" | "u1" | "i1") => "; convert with .astype(numpy.int32)",
        _ => "",
    }
}

/// Shows a shape as Python does.
pub(crate) struct Dims<'a, T>(pub &'a [T]);

impl<T: fmt::Display> fmt::Display for Dims<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(T::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads the bytes of a `.npy` file.
pub fn parse(bytes: &[u8]) -> Result<Array, NpyError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(NpyError::Magic)?;
    let cut = || NpyError::Header("the file ends in it".into());
    let (version, rest) = rest.split_at_checked(2).ok_or_else(cut)?;
    let length_bytes = match version {
        [1, 0] => 2,
        [2 | 3, 0] => 4,
        _ => return Err(NpyError::Version(version[0], version[1])),
    };
    let (length, rest) = rest.split_at_checked(length_bytes).ok_or_else(cut)?;
    let length = length.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let (header, data) = rest.split_at_checked(length).ok_or_else(cut)?;
    let text = std::str::from_utf8(header).map_err(|_| NpyError::Header("not UTF-8".into()))?;
    let header = Header::parse(text)?;
    let read = match header.descr.as_str() {
        Some("<i4") => i32::from_le_bytes,
        Some(">i4") => i32::from_be_bytes,
        other => return Err(NpyError::Dtype(other.map_or(header.descr.to_string(), str::to_owned))),
    };
    let shape = header.shape(data.len())?;
    let words: Vec<i32> = data.chunks_exact(4).map(|w| read([w[0], w[1], w[2], w[3]])).collect();
    let data = if header.fortran_order { c_order(&shape, &words) } else { words };
    Ok(Array { shape, data })
}

/// The bytes of a `.npy` file with this array.
pub fn write(array: &Array) -> Vec<u8> {
    let dims: String = array.shape.iter().map(|d| format!("{d},")).collect();
    let mut header = format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({dims}), }}");
    let padded = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - MAGIC.len() - 4;
    header.push_str(&" ".repeat(padded - 1 - header.len()));
    header.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((padded as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(array.data.iter().flat_map(|v| v.to_le_bytes()));
    out
}

/// Reorders elements stored with the first dimension fastest.
fn c_order(shape: &[usize], data: &[i32]) -> Vec<i32> {
    let mut out = Vec::with_capacity(data.len());
    let mut at = vec![0usize; shape.len()];
    for _ in 0..data.len() {
        let offset = at.iter().zip(shape).rev().fold(0, |o, (i, n)| o * n + i);
        out.push(data[offset]);
        for d in (0..shape.len()).rev() {
            at[d] += 1;
            if at[d] < shape[d] {
                break;
            }
            at[d] = 0;
        }
    }
    out
}

/// The dictionary that describes the data.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    descr: Value,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    /// Parses the Python literal that numpy writes: JSON but for quotes, brackets of tuples, names of truth values, and commas after
    /// last elements.
    fn parse(text: &str) -> Result<Header, NpyError> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let text = text.replace('\'', "\"").replace('(', "[").replace(')', "]");
        let text = text.replace(":True", ":true").replace(":False", ":false").replace(",]", "]");
        let bad =
            |why: String| NpyError::Header(why.split(" at line ").next().unwrap_or_default().to_owned());
        serde_json::from_str(&text.replace(",}", "}")).map_err(|e| bad(e.to_string()))
    }

    /// The shape, once it is known to take just the bytes that are there.
    fn shape(&self, found: usize) -> Result<Vec<usize>, NpyError> {
        let expected = self.shape.iter().try_fold(4u64, |n, d| n.checked_mul(*d));
        if expected == Some(found as u64) {
            // A dimension of 0 hides any other from the product; such an array has no elements to index.
            if let Ok(dims) = self.shape.iter().map(|d| usize::try_from(*d)).collect() {
                return Ok(dims);
            }
        }
        let expected = expected.map_or("more than 2^64".into(), |n| n.to_string());
        Err(NpyError::Length { shape: self.shape.clone(), expected, found })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut f = MAGIC.to_vec();
        f.extend([version, 0]);
        match version {
            1 => f.extend((header.len() as u16).to_le_bytes()),
            _ => f.extend((header.len() as u32).to_le_bytes()),
        }
        f.extend(header.as_bytes());
        f.extend(data);
        f
    }

    fn le(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn reads_what_numpy_writes() {
        // The bytes of numpy.save of arange(6, dtype=int32).reshape(1, 2, 3), header padded to 128 bytes.
        let header = format!("{:117}\n", "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3), }");
        let f = file(1, &header, &le(&[0, 1, 2, 3, 4, 5]));
        assert_eq!(f.len(), 128 + 24);
        let want = Array { shape: vec![1, 2, 3], data: vec![0, 1, 2, 3, 4, 5] };
        assert_eq!(parse(&f).unwrap(), want);
        let f = file(
            2,
            "{\"shape\":(2,),'fortran_order':False,'descr':'>i4'}",
            &[0, 0, 0, 1, 255, 255, 255, 255],
        );
        assert_eq!(parse(&f).unwrap(), Array { shape: vec![2], data: vec![1, -1] });
        let f = file(3, "{'descr': '<i4', 'fortran_order': False, 'shape': (), }", &le(&[7]));
        assert_eq!(parse(&f).unwrap(), Array { shape: vec![], data: vec![7] });
    }

    #[test]
    fn reorders_fortran_arrays() {
        let f =
            file(1, "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }", &le(&[0, 3, 1, 4, 2, 5]));
        assert_eq!(parse(&f).unwrap().data, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn says_what_is_wrong() {
        let good = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }";
        let with = |from: &str, to: &str| file(1, &good.replace(from, to), &le(&[1, 2]));
        let cases = [
            b"PK\x03\x04".to_vec(),
            MAGIC.to_vec(),
            file(1, good, &le(&[1, 2]))[..40].to_vec(),
            file(9, good, &[]),
            with("<i4", "<i8"),
            with("<i4", "<f4"),
            with("'<i4'", "[('a', '<i4'), ('b', '<i4')]"),
            with("(2,)", "(3,)"),
            with("(2,)", "(1,)"),
            with("(2,)", "(18446744073709551615, 2)"),
            with("(2,)", "(-2,)"),
            with("(2,)", "2"),
            with("(2,)", "(2,"),
            with("False", "Maybe"),
            with("'shape': (2,), ", ""),
            with("'shape'", "'form'"),
            with("'shape':", "'shape'"),
            with("{", ""),
        ];
        let report: Vec<String> = cases.iter().map(|c| parse(c).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(report.join("\n"));
    }

    proptest! {
        #[test]
        fn reads_back_what_it_writes(shape in prop::collection::vec(0usize..5, 0..4), seed: i32) {
            let n: usize = shape.iter().product();
            let data = (0..n).map(|i| seed.wrapping_mul(i as i32)).collect();
            let array = Array { shape, data };
            let bytes = write(&array);
            prop_assert_eq!((bytes.len() - 4 * n) % 64, 0);
            prop_assert_eq!(parse(&bytes).unwrap(), array);
        }

        #[test]
        fn never_panics(at in 6usize..72, byte: u8, keep in 0usize..80) {
            let mut f = write(&Array { shape: vec![2, 1, 1], data: vec![1, 2] });
            f[at] = byte;
            let _ = parse(&f);
            f.truncate(keep);
            let _ = parse(&f);
        }

        #[test]
        fn never_panics_on_any_header(header in "[{}()\\[\\]',:a-z0-9 é-]{0,40}") {
            let _ = parse(&file(1, &header, &[0; 8]));
        }
    }
}
