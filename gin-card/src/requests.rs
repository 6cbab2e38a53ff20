//! Puts that NCCL asks about.

/// Requests by number. A number is used again once NCCL has heard that its put is complete.
#[derive(Default)]
pub struct Requests {
    /// Whether each is complete; `None` where the number is free.
    slots: Vec<Option<bool>>,
    free: Vec<usize>,
}

impl Requests {
    /// A new request, which is not complete.
    pub fn open(&mut self) -> usize {
        let number = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(number) {
            Some(slot) => *slot = Some(false),
            None => self.slots.push(Some(false)),
        }
        number
    }

    /// The put's source has been read.
    pub fn complete(&mut self, number: usize) {
        if let Some(Some(is_complete)) = self.slots.get_mut(number) {
            *is_complete = true;
        }
    }

    /// Whether a request is complete, in which case its number is free again. `None` for a number without a request.
    pub fn take(&mut self, number: usize) -> Option<bool> {
        let slot = self.slots.get_mut(number)?;
        let is_complete = (*slot)?;
        if is_complete {
            *slot = None;
            self.free.push(number);
        }
        Some(is_complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_after_completion_was_heard() {
        let mut requests = Requests::default();
        let (first, second) = (requests.open(), requests.open());
        assert_eq!(requests.take(first), Some(false));
        requests.complete(first);
        assert_eq!(
            (requests.take(first), requests.take(first), requests.take(second)),
            (Some(true), None, Some(false))
        );
        assert_eq!(requests.open(), first);
        assert_eq!(requests.take(9), None);
    }
}
