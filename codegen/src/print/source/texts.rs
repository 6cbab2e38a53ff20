//! What the templates of a source and of its machine primitives are rendered with.

use serde::Serialize;

use crate::family::Target;
use crate::ir::Kernel;
use crate::print::launch::args::FieldText;
use crate::print::layout::shared::shared_align;
use crate::print::loader::Crew;
use crate::print::matrix::products::{Fp8ProductsText, PiecesText, ProductsText, TensorText};
use crate::print::text::{
    ConstantText, Prim, PrintError,
    names::fnv,
    prim::Context,
    template::{NothingText, render},
};

/// What `kernel.hbs` is rendered with.
#[derive(Debug, Serialize)]
pub(crate) struct KernelText {
    pub banner: Vec<String>,
    pub includes: Vec<&'static str>,
    pub namespace: String,
    pub types: Vec<String>,
    pub fields: Vec<FieldText>,
    /// Whether ranks are on several machines.
    pub nodes: bool,
    pub ranks: u32,
    pub constants: Vec<ConstantText>,
    /// Macros that the header of primitives asks for.
    pub macros: Vec<&'static str>,
    /// The header of primitives, if there is one.
    pub primitives: Option<String>,
    /// Types of primitives, and declarations.
    pub before: Vec<String>,
    /// What they do.
    pub after: Vec<String>,
    pub roles: Vec<String>,
    pub threads: u32,
    /// Blocks that an SM has at once.
    pub blocks_each: u32,
    /// Whether two neighbouring blocks are a cluster.
    pub paired: bool,
    pub entry: String,
    pub overlaps_previous: bool,
    /// What comes before the end of the launch before.
    pub early: Option<String>,
    pub body: String,
}

/// The emitted source.
pub(crate) fn kernel(target: Target, context: &KernelText) -> Result<String, PrintError> {
    let name = match target {
        Target::Cuda(_) => "cuda/kernel",
        Target::Hip(_) => "hip/kernel",
    };
    render(name, context)
}

/// What the templates of primitives that depend on the block's shape are rendered with.
#[derive(Debug, Serialize)]
struct BlockText {
    warp_size: u32,
    warps: u32,
    block_warps: u32,
    threads: u32,
    /// Whether blocks have more warps than their role's, and whether other roles have some of these.
    others: bool,
    beside: bool,
    /// Those of roles beside others included, but not the loader's.
    all_warps: u32,
    /// Places where the warps of a block meet.
    meetings: u32,
    /// Whether blocks with warps beside go on as another role, whose groups count their meetings anew.
    lives: bool,
    /// Warps that are of no role's group, if blocks have some.
    loader: Option<Crew>,
    loader_threads: u32,
    /// Whether what ends an expired wait is emitted wherever one may expire.
    ends_inline: bool,
    shared_align: u32,
}

/// The same, and the pieces of operands of products.
#[derive(Debug, Serialize)]
struct BlockAndPieces {
    #[serde(flatten)]
    block: BlockText,
    #[serde(flatten)]
    pieces: PiecesText,
}

/// What the templates of primitives that depend on the target are rendered with.
#[derive(Debug, Serialize)]
struct TargetText {
    /// Whether it is one of CUDA's.
    cuda: bool,
    /// Whether there is a fence that acquires only.
    fence_acquire: bool,
    /// Whether matrix instructions take OCP's fp8.
    fp8_products: bool,
    /// Whether instructions are of AMD's twelfth generation: warps of 32 lanes, `wmma`, and counters of loads and stores by themselves.
    gfx12: bool,
}

/// Whether a group of a block counts its meetings, and the blocks of a kernel have several such groups one after the other.
pub(super) fn has_lives(kernel: &Kernel, target: Target) -> bool {
    let goes_on = kernel.roles.iter().any(|role| role.goes_on_as.is_some());
    matches!(target, Target::Hip(_)) && kernel.beside_warps() > 0 && goes_on
}

impl BlockText {
    fn of(kernel: &Kernel, target: Target, loader: Option<Crew>) -> BlockText {
        BlockText {
            warp_size: kernel.warp_size,
            warps: kernel.block_warps,
            block_warps: kernel.block_warps,
            threads: kernel.block_threads(),
            others: loader.is_some() || kernel.beside_warps() > 0,
            beside: kernel.beside_warps() > 0,
            all_warps: kernel.block_warps + kernel.beside_warps(),
            meetings: 1 + kernel.roles.iter().filter(|role| role.beside.is_some()).count() as u32,
            lives: has_lives(kernel, target),
            loader_threads: loader.map_or(0, |crew| crew.warps * kernel.warp_size),
            loader,
            ends_inline: loader.is_some_and(|crew| crew.ends_inline),
            shared_align: shared_align(kernel, target),
        }
    }
}

/// What the texts of primitives depend on beside the target, as a part of a file's name: the warps of a block, and a digest where
/// a loader, roles beside others, or products of matrices make a difference.
pub(crate) fn shape(target: Target, kernel: &Kernel, loader: Option<Crew>) -> String {
    let block = BlockText::of(kernel, target, loader);
    let products = ProductsText::of(kernel);
    let warps = format!("{}_warps", kernel.block_warps);
    let plain = !block.others && block.shared_align == 16 && products == ProductsText::default();
    let pieces = PiecesText::of(kernel, target);
    let fp8 = pieces.fp8.then(|| format!(" {:?}", Fp8ProductsText::of(kernel)));
    match fp8 {
        None if plain && !pieces.gathers => warps,
        fp8 => {
            let gathers = if pieces.gathers { " gathers" } else { "" };
            let scaled = if pieces.scaled { " scaled" } else { "" };
            let paired = if pieces.paired { " paired" } else { "" };
            let all = format!("{block:?} {products:?}{}{gathers}{scaled}{paired}", fp8.unwrap_or_default());
            format!("{warps}_{:016x}", fnv(&all))
        }
    }
}

/// A primitive's text for a kernel.
pub(crate) fn primitive(
    prim: Prim,
    target: Target,
    kernel: &Kernel,
    loader: Option<Crew>,
) -> Result<String, PrintError> {
    let name = prim.templates().of(target).name;
    let text = match prim.context() {
        Context::Nothing => render(name, &NothingText {}),
        Context::Block => {
            let block = BlockText::of(kernel, target, loader);
            render(name, &BlockAndPieces { block, pieces: PiecesText::of(kernel, target) })
        }
        Context::Target => {
            let fence_acquire = match target {
                Target::Cuda(arch) => arch.capability() >= 90,
                Target::Hip(_) => true,
            };
            let cuda = matches!(target, Target::Cuda(_));
            let fp8_products = target.has_fp8_products();
            render(name, &TargetText { cuda, fence_acquire, fp8_products, gfx12: target.is_gfx12() })
        }
        Context::Pieces => render(name, &PiecesText::of(kernel, target)),
        Context::Products => render(name, &ProductsText::of(kernel)),
        Context::TensorProducts => render(name, &TensorText::of(kernel)),
        Context::Fp8Products => render(name, &Fp8ProductsText::of(kernel)),
    };
    text.map(|t| t.trim_end().to_string())
}
