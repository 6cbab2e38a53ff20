//! What the derives stand for, as a reader of expanded code sees it.

use quote::quote;
use syn::parse_quote;

fn pretty(tokens: proc_macro2::TokenStream) -> String {
    prettyplease::unparse(&syn::parse2(tokens).expect("expansions are items"))
}

#[test]
fn a_family() {
    let input = parse_quote! {
        #[family(name = "scale_rows", kernel = kernels::scale, args = ScaleArgs, warps = warps, serde)]
        pub struct Scale {
            /// Elements of a row.
            #[key(short = "h", range = 8..=65536, multiple_of = 8)]
            pub hidden: u32,
            #[tune(short = "w", values = [4, 8], default = 8)]
            pub warps: u32,
            #[key(short = "r", range = 2..=64, ranks)]
            ranks: u32,
            #[tune(default = |key| if key.hidden > 4096 { Path::Bulk } else { Path::Packets })]
            pub path: Path,
        }
    };
    insta::assert_snapshot!(pretty(crate::family::expand(&input, &quote!(::peerwarp::codegen)).unwrap()));
}

#[test]
fn kernel_args() {
    let input = parse_quote! {
        #[args(config = Scale)]
        pub struct ScaleArgs {
            /// Rows to scale,
            /// in place.
            ///
            /// One for each rank.
            #[len(|c| u64::from(c.hidden) * 64)]
            #[dtype(|c| c.dtype)]
            pub rows: AnyPtr,
            /// Only with scales.
            #[len(|c| c.scales.into())]
            pub scale: Option<Ptr<f32>>,
            #[len(64)]
            pub done: Flags,
            pub by: Val<f32>,
        }
    };
    insta::assert_snapshot!(pretty(crate::args::expand(&input, &quote!(::peerwarp_codegen)).unwrap()));
}

#[test]
fn a_choice() {
    let input = parse_quote! {
        #[choice(serde)]
        enum Path {
            Packets,
            #[choice(name = "bulk-copy")]
            Bulk,
        }
    };
    insta::assert_snapshot!(pretty(crate::choice::expand(&input, &quote!(::peerwarp_codegen)).unwrap()));
}
