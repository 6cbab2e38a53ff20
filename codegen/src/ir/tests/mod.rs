//! Tests of the text form, verifier, analyses, descriptions and mutations.

mod text;
