//! What the checker reports: findings in words, deadlocks, and what must hold when something ends.

pub(super) mod ahead;
pub(super) mod deadlock;
pub(super) mod diagnose;
pub(super) mod ending;
pub(super) mod finding;

pub(super) use finding::FindingKind;
