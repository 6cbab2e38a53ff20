//! What a tile range says about elements is not lost on the way to an access; conditions choose between like and like.
use peerwarp_codegen::dsl::prelude::*;

fn length_of_the_device(x: Ptr<f32>, t: TileRange) -> Tile<f32> {
    x.load(t.at(), t.count())
}

fn place_as_number(x: Ptr<f32>, t: TileRange) -> Val<f32> {
    x.get(t.at() / 2)
}

fn place_with_offset(t: TileRange) -> Index {
    8 + t.at() + rank()
}

fn unlike_types(c: Val<bool>, a: Tile<f32>, b: Tile<u32>) -> Tile<f32> {
    c.select(a, b)
}

fn chosen_and_not(c: Val<bool>, a: AnyTile, b: Tile<f32>) -> Tile<f32> {
    c.select(a, b)
}

fn scalar_plus_tile(mut sum: Val<f32>, x: Tile<f32>) -> Val<f32> {
    sum += x;
    sum
}

fn main() {}
