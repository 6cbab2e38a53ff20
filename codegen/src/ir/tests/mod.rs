//! Tests of the text form, verifier, analyses, descriptions and mutations.

mod analysis;
mod text;
mod verify;
