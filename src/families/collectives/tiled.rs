//! What the collectives share that send a vector as tiles, each a message: the fields that cut it, their defaults and their limits.

/// A family with these fields: the elements of a vector first, then other key fields, then tuning fields of its own. The blocks of
/// `roles` roles share tiles of as many elements as `length` says of a key. `also` checks the other fields.
/// With `lengths` launches say lengths, by the fields `length` and `row`; a `new` key has these values in the other fields.
macro_rules! tiled {
    (
        $(#[$family:meta])*
        pub struct $name:ident, $key:ident {
            $(#[$elements_attr:meta])*
            pub $elements:ident: u32,
            $($fields:tt)*
        }
        dtypes = [$($dtype:ident),*], length = $length:expr, roles = $roles:literal, blocks = [$($blocks:literal),*] $(, also = $also:expr)?
        $(, lengths, new = { $($default:tt)* })?
    ) => {
        $(#[$family])*
        pub struct $name {
            $(#[$elements_attr])*
            pub $elements: u32,
            /// World size.
            #[key(short = "r", range = 1..=64, ranks)]
            pub ranks: u32,
            /// Type of the elements.
            #[key(values = [$(Dtype::$dtype),*])]
            pub dtype: Dtype,
            $($fields)*
            /// How tiles travel.
            #[tune(values = [Transport::Packets, Transport::Flags], default = |key| legal::transport(key.dtype))]
            pub protocol: Transport,
            /// Warps of a block.
            #[tune(short = "w", values = [1, 2, 4, 8, 16, 32], default = |key| legal::warps(chunk(key), key.dtype))]
            pub warps: u32,
            /// Elements of a tile.
            #[tune(short = "c", values = [256, 512, 1024, 2048, 4096, 8192, 16384], default = |key| chunk(key))]
            pub chunk: u32,
            /// Blocks of each role.
            #[tune(short = "b", shrinks, values = [$($blocks),*], default = |key| legal::blocks(length(key), chunk(key), $roles))]
            pub blocks: u32,
        }

        /// Elements that are cut into tiles.
        fn length(key: &$key) -> u32 {
            let length: fn(&$key) -> u32 = $length;
            length(key)
        }

        fn chunk(key: &$key) -> u32 {
            legal::chunk(length(key), $roles)
        }

        impl Legal for $name {
            fn legal(&self) -> Result<(), Illegal> {
                $(
                    let also: fn(&$name) -> Result<(), Illegal> = $also;
                    also(self)?;
                )?
                legal::carried(self.protocol, self.dtype)?;
                legal::tile("chunk", self.chunk, self.warps)
            }
        }

        $(impl $key {
            /// Vectors of one length, which stay as they are.
            pub fn new($elements: u32, ranks: u32, dtype: Dtype) -> $key {
                $key { $elements, ranks, dtype, length: Length::Whole, row: 1, $($default)* }
            }
        }

        impl $name {
            pub(super) fn lengths(&self) -> Lengths {
                Lengths::new(self.length, self.row, length(&self.key()), self.ranks)
            }
        })?

        impl $name {
            fn cut(&self) -> Cut {
                Cut::new(length(&self.key()), self.chunk, self.dtype).of_any(self.lengths())
            }
        }
    };
}

pub(super) use tiled;
