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
            #[key(range = 1..=64, covers)]
            tokens: u32,
            #[tune(default = |key| if key.hidden > 4096 { Path::Bulk } else { Path::Packets })]
            pub path: Path,
        }
    };
    insta::assert_snapshot!(pretty(crate::family::expand(&input, &quote!(::peerwarp::codegen)).unwrap()));
}

#[test]
fn a_plan_has_what_launches_do_not_share() {
    let input = parse_quote! {
        #[family(name = "scale_rows", kernel = scale, args = ScaleArgs, warps = warps, plan = ScalePlan)]
        pub struct Scale {
            #[key(short = "h", range = 8..=65536)]
            pub hidden: u32,
            #[tune(short = "w", values = [4, 8])]
            pub warps: u32,
            #[tune(shared)]
            pub path: Path,
        }
    };
    let all = pretty(crate::family::expand(&input, &quote!(::peerwarp::codegen)).unwrap());
    let plan = all.find("pub struct ScalePlan").expect("a plan");
    insta::assert_snapshot!(&all[plan..]);
    let without: syn::DeriveInput = parse_quote! {
        #[family(name = "scale_rows", kernel = scale, args = ScaleArgs, warps = 4)]
        pub struct Scale {
            #[tune(shared)]
            pub path: Path,
        }
    };
    let refused = crate::family::expand(&without, &quote!(::peerwarp::codegen)).unwrap_err().to_string();
    assert_eq!(refused, "launches share a field where the family has a `plan = Name`");
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
    insta::assert_snapshot!(pretty(crate::args::expand(&input, &quote!(::peerwarp_codegen), None).unwrap()));
}

#[test]
fn kernel_args_of_one_group_or_another() {
    let input = parse_quote! {
        #[args(config = Scale)]
        pub enum RecordArgs {
            /// With flags.
            #[when(|c| c.flags)]
            Flags(FlagArgs),
            /// As LL elements.
            #[group(|c| c.ll())]
            Ll(LlArgs),
        }
    };
    insta::assert_snapshot!(pretty(crate::args::expand(&input, &quote!(::peerwarp_codegen), None).unwrap()));
}

#[test]
fn launches_take_what_is_the_caller_s() {
    let input = parse_quote! {
        #[args(config = Scale)]
        pub(crate) struct ScaleArgs {
            /// Rows to scale.
            ///
            /// One for each rank.
            #[input]
            #[len(|c| u64::from(c.hidden) * (64 + c.rows(2)[0]))]
            #[dtype(|c| c.dtype)]
            pub rows: AnyPtr,
            #[input]
            #[len(|c| c.scales.into())]
            scale: Option<Ptr<f32>>,
            /// How many there are.
            #[input]
            pub n: Ptr<u32>,
            #[output]
            #[len(8)]
            pub out: Ptr<f32>,
            #[output]
            #[len(|c| c.sums.into())]
            pub sums: Option<Ptr<f32>>,
            /// What is routed.
            #[group(|c| c.route())]
            #[input]
            pub route: route::RouteArgs,
            #[group]
            pub inbox: InboxArgs,
            #[len(64)]
            pub done: Flags,
            /// The factor.
            pub by: Val<f32>,
        }
    };
    let expanded =
        crate::args::expand(&input, &quote!(::peerwarp::codegen), Some(&quote!(::peerwarp))).unwrap();
    let text = pretty(expanded);
    insta::assert_snapshot!(text.split_once("What a caller passes").unwrap().1);
}

/// Of some configurations alone: a number, and rows that it counts.
#[test]
fn launches_take_a_number_that_may_be_missing() {
    let input = parse_quote! {
        #[args(config = Scale)]
        pub struct ScaleArgs {
            #[len(|c| u64::from(c.any))]
            pub rows: Option<Val<u32>>,
            #[input]
            #[len(|c| u64::from(c.hidden))]
            #[rows(|c| c.any.then_some(("rows", 8)))]
            pub x: Ptr<f32>,
        }
    };
    let expanded =
        crate::args::expand(&input, &quote!(::peerwarp::codegen), Some(&quote!(::peerwarp))).unwrap();
    let text = pretty(expanded);
    for part in [
        "rows: binder.next_if_declared::<Val<u32>>(\"rows\")",
        ".rows_of({",
        "|c| {\n                            c.any.then_some((\"rows\", 8))",
        "pub rows: ::core::option::Option<u32>",
        "; of fewer rows, where a number of the variant says how many.",
        "_call.optional_scalar(\"rows\", self.rows)?;",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[test]
fn launches_without_tensors_borrow_nothing() {
    let input = parse_quote! {
        #[args(config = Mail)]
        struct Params {
            #[len(64)]
            done: Flags,
            by: Val<u32>,
        }
    };
    let expanded =
        crate::args::expand(&input, &quote!(::peerwarp::codegen), Some(&quote!(::peerwarp))).unwrap();
    let text = pretty(expanded);
    insta::assert_snapshot!(text.split_once("What a caller passes").unwrap().1);
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
