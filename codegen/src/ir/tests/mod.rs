//! Tests of the text form, verifier, analyses, descriptions and mutations.

mod analysis;
mod explain;
mod mutate;
mod planted;
mod text;
mod verify;
