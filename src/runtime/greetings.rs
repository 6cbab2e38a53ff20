//! Greetings: a word from each rank to every other one, by which ranks find out whether they reach each other.

use super::RuntimeError;
use super::net::{FormError, Teams};
use super::symmetric::{Member, Symmetric};

/// Bytes from a rank's status to the words that are written to it.
const GREETINGS: u64 = 256;

/// Bytes of a rank's status, with a word from each rank behind it.
pub(super) fn status_bytes(ranks: u32) -> u64 {
    GREETINGS + 8 * u64::from(ranks)
}

/// The word that a rank writes to another one.
fn greeting(from: u32, to: u32) -> u64 {
    0x7065_6572_0000_0000 | u64::from(from) << 16 | u64::from(to)
}

/// Has these ranks write to all of their node. They read when all have done so.
pub(super) fn write(members: &[Member], teams: &Teams, status: &Symmetric) -> Result<(), RuntimeError> {
    for (index, member) in members.iter().enumerate() {
        let (first, own) = numbers(member, teams);
        for (base, to) in status.bases(index).iter().zip(first..) {
            let at = base + GREETINGS + 8 * u64::from(own);
            // SAFETY: the world's memory, as large as all greetings.
            unsafe { member.gpu.upload(at, &greeting(member.rank, to).to_ne_bytes())? };
        }
        member.gpu.synchronize()?;
    }
    Ok(())
}

/// The first rank of a member's node, and its number there.
fn numbers(member: &Member, teams: &Teams) -> (u32, u32) {
    let own = teams.place(member.rank).map_or(0, |place| place.local_rank);
    (member.rank - own, own)
}

/// Whether what the active ranks of their nodes wrote to these has arrived.
pub(super) fn read(
    members: &[Member],
    teams: &Teams,
    status: &Symmetric,
    is_active: impl Fn(u32) -> bool,
) -> Result<(), RuntimeError> {
    for (index, member) in members.iter().enumerate() {
        let (first, _) = numbers(member, teams);
        let mut found = vec![0u64; status.bases(index).len()];
        let at = status.own(index) + GREETINGS;
        // SAFETY: as above.
        unsafe { member.gpu.download(at, bytemuck::cast_slice_mut(&mut found))? };
        for (from, &found) in (first..).zip(&found).filter(|(from, _)| is_active(*from)) {
            let (to, wrote) = (member.rank, greeting(from, member.rank));
            if found != wrote {
                return Err(FormError::Unreachable { from, to, wrote, found }.into());
            }
        }
    }
    Ok(())
}
