//! `#[kernel]` records what the Family derive needs beside the function.

use peerwarp_macros::kernel;

struct Config;
struct Args;

/// Adds the ranks' rows
/// and stores the sum.
///
/// Not part of the first paragraph.
#[kernel]
fn add_rows(_c: &Config, _a: &Args) {}

#[test]
fn name_doc_and_place() {
    add_rows(&Config, &Args);
    let info = __peerwarp_kernel_add_rows;
    assert_eq!(info.name, "add_rows");
    assert_eq!(info.doc, "Adds the ranks' rows and stores the sum.");
    assert_eq!((info.loc.file, info.loc.line, info.loc.col), (file!(), 13, 4));
}
