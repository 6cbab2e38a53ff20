//! Macros of Peerwarp.
//!
//! `#[kernel]` turns a function into one that can be traced; see [`macro@kernel`].
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod args;
mod attrs;
mod choice;
#[cfg(test)]
mod expansion_tests;
mod family;
mod kernel;
mod launch;
mod message;
mod one_of;
mod pack;
mod paths;
mod serial;

use proc_macro::TokenStream;

/// Makes a function traceable: host operands run now, and device operands are traced. It rewrites what Rust cannot overload: `if`,
/// `while`, `for`, comparisons, `&&`, `||`, assignment, `break`, `continue` and `return`.
///
/// The function stays one ordinary Rust function; called with host values only it computes what it would without the
/// attribute. Put it on kernels and on helpers that branch on device values or compare them. Items inside the function
/// and arguments of macros other than the common `std` ones are left alone. `#[host]` on a statement or on an `if`
/// leaves that construct to Rust.
///
/// Beside a function `f` with two reference arguments the attribute puts a hidden constant `__peerwarp_kernel_f` with
/// its name, the first paragraph of its docs and its place in the source.
#[proc_macro_attribute]
pub fn kernel(args: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(args.into(), item.into()).into()
}

/// Makes a struct the configuration of a family of kernels: its fields' ranges, menus and defaults, the family's name
/// and its kernel. See `peerwarp_codegen::family`.
#[proc_macro_derive(Family, attributes(family, key, tune))]
pub fn family(item: TokenStream) -> TokenStream {
    derive(item, family::expand)
}

/// Makes an enum without fields a type that configuration fields may have. Variants are named in kebab case, or by
/// `#[choice(name = "fp8")]`; `#[choice(serde)]` on the enum reads and writes those names.
#[proc_macro_derive(Choice, attributes(choice))]
pub fn choice(item: TokenStream) -> TokenStream {
    derive(item, choice::expand)
}

/// Makes a struct of handles the parameters of a kernel. Closures compute from the configuration; the first paragraph of a field's
/// docs is recorded.
///
/// | attribute | on | meaning |
/// |---|---|---|
/// | `#[args(config = Scale)]` | the struct | the configuration that the closures take |
/// | `#[len(\|c\| ..)]` | a field | its number of elements, 1 without it; of a channel, the elements of a message. A field of type `Option<T>` is a parameter where this is not 0, and `None` elsewhere |
/// | `#[dtype(\|c\| ..)]` | fields whose type begins with `Any` | the element type |
/// | `#[shape(\|c\| ..)]` | `Matrix`, `SymMatrix`, `WindowMatrix`, and these with `Any` in front | rows and columns |
/// | `#[channel(\|c\| ..)]` | `Channel`, `AnyChannel` | the `ChannelShape` |
/// | `#[input]` | `Ptr`, `AnyPtr`, `Matrix`, `AnyMatrix`, `Window`, `AnyWindow`; a group | a launch passes this memory, which the kernel reads. All ranks can reach the memory of a window. Of a group: a launch passes what it marks |
/// | `#[output]` | as `#[input]`, but no group | a launch passes this memory, which the kernel writes |
/// | `#[inout]` | as `#[output]` | a launch passes this memory, which the kernel, or peers, read and write |
/// | `#[rows(number, \|c\| ..)]` | an input or output with a length | a launch has as many rows as its parameter `number` says; the length is that of the most rows, which the closure computes |
/// | `#[rows(\|c\| ..)]` | the same | the closure computes `Option<(&'static str, u64)>`: the number's name and the most rows, or none where a launch has all of them |
/// | `#[group]`, `#[group(\|c\| ..)]` | a field | a struct of parameters that several kernels share; the closure computes its configuration where it is another one |
/// | `#[when(\|c\| ..)]` | a variant of an enum | see below |
///
/// What is neither marked nor a `Val` is the operation's own memory, made with it. In a crate that depends on `peerwarp`, the derive
/// makes a second struct for launches, `ScaleLaunch` of `ScaleArgs`. It has a field for each marked parameter, each `Val` and each group
/// that is marked `#[input]`.
///
/// An enum is several such structs, of which the configuration chooses one: the first variant whose `#[when(|c| ..)]` holds, or the
/// last one, which has none. Each variant holds a struct, and `#[group(|c| ..)]` on it computes the struct's configuration where it is
/// another one. An enum is a `#[group]` of a kernel's parameters, and what it holds is the operation's own.
#[proc_macro_derive(
    KernelArgs,
    attributes(args, len, shape, dtype, rows, group, when, input, output, inout, channel)
)]
pub fn kernel_args(item: TokenStream) -> TokenStream {
    let runtime = paths::runtime();
    derive(item, |input, codegen| args::expand(input, codegen, runtime.as_ref()))
}

/// Makes a struct of `Field<T>` and `AnyField` the messages of a channel. `#[message(config = Scale)]` names the configuration.
/// `#[len(|c| ..)]` on a field computes its number of elements in a message, and `#[dtype(|c| ..)]` the element type of an `AnyField`. A
/// field of type `Option<Field<T>>` is there where its length is not 0.
#[proc_macro_derive(Message, attributes(message, len, dtype))]
pub fn message(item: TokenStream) -> TokenStream {
    derive(item, message::expand)
}

/// Puts a pack, a folder that `peerwarp pack` wrote, into the program: `include_pack!("kernels")` is a
/// `peerwarp::build::pack::Embedded`, which can be the value of a `static`. The path is relative to the folder of `Cargo.toml`.
///
/// The pack is checked while the program is compiled: its manifest must be of this version of Peerwarp, and every object
/// must be the one that the manifest means. The program is compiled again when a file of the pack changes.
#[proc_macro]
pub fn include_pack(input: TokenStream) -> TokenStream {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(std::path::PathBuf::from).unwrap_or_default();
    attrs::or_errors(pack::expand(input.into(), &root, &paths::peerwarp())).into()
}

fn derive(
    item: TokenStream,
    expand: impl Fn(&syn::DeriveInput, &proc_macro2::TokenStream) -> syn::Result<proc_macro2::TokenStream>,
) -> TokenStream {
    let input = syn::parse_macro_input!(item as syn::DeriveInput);
    attrs::or_errors(expand(&input, &paths::codegen())).into()
}
