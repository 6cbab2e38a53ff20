//! Far channels: an engine's channels suffice, and batches are published.

use std::collections::HashSet;

use super::*;

pub(super) fn check(report: &mut Report<'_>) {
    let k = report.kernel;
    let channels = k.far_channels();
    if channels > FAR_CHANNELS {
        let arrays = k.params.iter().filter(|p| p.kind == ParamKind::Far(FarPart::Counts));
        let arrays: Vec<String> = arrays.map(|p| format!("`{}` has {}", p.name, k.channels_of(p))).collect();
        let arrays = arrays.join(", ");
        report.add(k.loc, Problem::FarChannels { channels, arrays, limit: FAR_CHANNELS });
    }
    let messages = |p: &&Param| matches!(p.kind, ParamKind::Far(FarPart::Outbox | FarPart::Inbox));
    let bytes = |p: &Param| p.len.saturating_mul(p.element_bytes().into());
    let total = k.params.iter().filter(messages).map(bytes).fold(u64::from(FAR_UNIT), u64::saturating_add);
    if total > FAR_MEMORY {
        report.add(k.loc, Problem::FarMemory { bytes: total, limit: FAR_MEMORY });
    }
    for p in k.params.iter().filter(|p| p.kind == ParamKind::Far(FarPart::Counts)) {
        if !p.len.is_multiple_of(k.all_ranks().max(1).into()) {
            report.add(k.loc, Problem::FarBanks { counts: p.name.clone(), len: p.len, ranks: k.all_ranks() });
        }
    }
    let (mut puts, mut publishes) = (vec![], vec![]);
    report.each_op(&mut |_, op| {
        let OpKind::Comm(kind) = &op.kind else { return };
        match kind {
            CommOp::FarPut(put) => puts.push((op.loc, put)),
            CommOp::FarPublish(publish) => publishes.push((op.loc, publish.counts)),
            any!(puts, signals, waits, messages) | CommOp::FarWait(_) | CommOp::FarSettle(_) => {}
        }
    });
    let published: HashSet<ParamId> = publishes.iter().map(|(_, counts)| *counts).collect();
    for (loc, put) in puts {
        if !put.counted && !published.contains(&put.counts) {
            let (inbox, counts) =
                (report.param(put.inbox).name.clone(), report.param(put.counts).name.clone());
            report.add(loc, Problem::FarUnpublished { inbox, counts });
        }
    }
    for (loc, counts) in publishes {
        if k.far_counts_each(counts) {
            report.add(loc, Problem::FarPublishedTwice { counts: report.param(counts).name.clone() });
        }
    }
}
