//! Patterns of operations that most consumers treat alike.
//!
//! A new operation stands in no group: it does not compile until every consumer names it, or it joins one here.

/// A pattern of the operations of these groups: `any!(given, casts)`.
macro_rules! any {
    ($one:ident, $($more:ident),+) => { any!($one) | any!($($more),+) };
    // Values without operands.
    (given) => { ValueOp::Const { .. } | any!(of_launch) };
    (of_launch) => {
        ValueOp::Rank { .. } | ValueOp::Node { .. } | ValueOp::Active { .. } | ValueOp::ScalarParam { .. } | ValueOp::Epoch { .. } | ValueOp::GroupIndex { .. }
    };
    // Arithmetic, element by element.
    (by_element) => { ValueOp::Binary { .. } | ValueOp::Select { .. } | any!(pointwise, casts) };
    (pointwise) => { ValueOp::Unary { .. } | ValueOp::Compare { .. } | ValueOp::Fma { .. } };
    (casts) => { ValueOp::Cast { .. } | ValueOp::Bitcast { .. } };
    // From scalars to tiles, and over the elements of one.
    (spreads) => { ValueOp::Splat { .. } | ValueOp::Arange { .. } };
    (reductions) => { ValueOp::Reduce { .. } | ValueOp::Scan { .. } };
    (loads) => { MemoryOp::Load { .. } | MemoryOp::LoadMasked { .. } | MemoryOp::Gather { .. } };
    (stores) => { MemoryOp::Store { .. } | MemoryOp::Scatter { .. } };
    (counts) => { MemoryOp::Atomic { .. } | MemoryOp::Tally { .. } | MemoryOp::Ticket { .. } };
    // Parts of parcels, flags, and data that arrive by themselves.
    (puts) => { CommOp::Put(_) | CommOp::PutMatrix(_) | CommOp::BulkCopy(_) };
    (signals) => { CommOp::Signal(_) | CommOp::BlockSignal(_) };
    (waits) => { CommOp::Wait(_) | CommOp::WaitAll(_) | CommOp::BlockWait(_) };
    // Puts through a network card, and what counts and completes them.
    (far) => { CommOp::FarPut(_) | CommOp::FarPublish(_) | CommOp::FarWait(_) | CommOp::FarSettle(_) };
    (messages) => { CommOp::SendMessages(_) | CommOp::ReceiveMessages(_) };
    (branches) => {
        ControlOp::If { .. } | ControlOp::For { .. } | ControlOp::While { .. } | ControlOp::Split { .. }
    };
    (exits) => { ControlOp::Break { .. } | ControlOp::Continue { .. } };
    (variables) => { ControlOp::VarDecl { .. } | ControlOp::VarGet { .. } | ControlOp::VarSet { .. } };
    // Instructions of the simulator.
    (scalars) => {
        Insn::Copy { .. } | Insn::Binary { .. } | Insn::Unary { .. } | Insn::Compare { .. }
            | Insn::Select { .. } | Insn::Cast { .. } | Insn::Fma { .. }
    };
    (launched) => {
        Insn::Rank { .. } | Insn::Node { .. } | Insn::Active { .. } | Insn::ScalarParam { .. } | Insn::Epoch { .. } | Insn::GroupIndex { .. }
    };
    (ends) => { Insn::Split { .. } | Insn::Join | Insn::End };
    // Parameters: what peers reach, and a rank's own that hold no data.
    (symmetric) => {
        ParamKind::Symmetric | ParamKind::Window | ParamKind::Flags | ParamKind::Counts | ParamKind::Messages(_)
    };
    (private) => { any!(counted) | ParamKind::EpochWord | ParamKind::Scalar };
    (counted) => { ParamKind::Counters | ParamKind::BlockFlags };
    (sums) => { BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul };
    (quotients) => { BinaryOp::Div | BinaryOp::Rem };
    (extremes) => { BinaryOp::Min | BinaryOp::Max };
    (bits) => { BinaryOp::And | BinaryOp::Or | BinaryOp::Xor };
    (shifts) => { BinaryOp::Shl | BinaryOp::Shr };
}
