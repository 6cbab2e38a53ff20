//! The buffers of a packed kernel, read from the words that its manifest has for them.

use peerwarp_codegen::ir::{Dtype, ParamKind, signature_and_order};

use super::Entry;

/// A parameter of a packed kernel: what a caller allocates, or passes by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackBuffer {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
    /// Type of its elements.
    pub dtype: Dtype,
    /// How many elements it has.
    pub len: u64,
    /// The order of its elements, if it is not that of their indices. Kernels that share a buffer must agree in it.
    pub order: Option<String>,
}

impl PackBuffer {
    /// Size in bytes; none if no number holds it.
    pub fn bytes(&self) -> Option<u64> {
        self.len.checked_mul(self.kind.element_bytes(self.dtype).into())
    }

    /// From the words of a manifest: `x: Local of 64 F32`.
    fn parse(words: &str) -> Option<PackBuffer> {
        let (words, order) = signature_and_order(words);
        let (name, rest) = words.rsplit_once(": ")?;
        let mut parts = rest.split(' ');
        let (kind, of, len, dtype) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if of != "of" || parts.next().is_some() {
            return None;
        }
        let kind = ParamKind::ALL.into_iter().find(|k| format!("{k:?}") == kind)?;
        let dtype = Dtype::ALL.into_iter().find(|d| format!("{d:?}") == dtype)?;
        let order = order.map(str::to_owned);
        Some(PackBuffer { name: name.to_owned(), kind, dtype, len: len.parse().ok()?, order })
    }
}

impl Entry {
    /// Its parameters, in the order of the kernel's.
    ///
    /// # Errors
    /// The words of one that cannot be read, as the manifest has them.
    pub fn buffers(&self) -> Result<Vec<PackBuffer>, &str> {
        self.params.iter().map(|words| PackBuffer::parse(words).ok_or(words.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::ir::Param;

    use super::*;

    #[test]
    fn the_words_of_every_kind_and_type_are_read_back() {
        for kind in ParamKind::ALL {
            for dtype in Dtype::ALL {
                let (name, doc) = ("a_name".to_owned(), String::new());
                let param = Param { name, kind, dtype, len: 3, columns: None, own: false, doc };
                let read = PackBuffer::parse(&param.signature()).unwrap();
                assert_eq!((read.kind, read.dtype, read.len), (kind, dtype, 3));
                assert_eq!(read.bytes(), Some(3 * u64::from(param.element_bytes())));
            }
        }
    }

    #[test]
    fn an_order_is_read_back() {
        let words = "parts: Window of 12288 Bf16, in the order of 128 lanes with 4 each";
        let read = PackBuffer::parse(words).unwrap();
        assert_eq!((read.len, read.order.as_deref()), (12288, Some("128 lanes with 4 each")));
    }

    #[test]
    fn other_words_are_refused() {
        for words in ["", "x", "x: Local", "x: Local of F32", "x: Local of 1 F32 more", "x: Local of -1 F32"]
        {
            assert_eq!(PackBuffer::parse(words), None, "{words}");
        }
        let endless = PackBuffer::parse(&format!("x: Ll of {} U32", u64::MAX)).unwrap();
        assert_eq!(endless.bytes(), None);
    }
}
