use smallvec::SmallVec;

/// Ranges `(start, length)` of global coordinates along one axis, in the order in which a rank's local array has
/// them. None is empty, none overlaps another, and neighbours that continue each other are one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spans {
    spans: SmallVec<[(u64, u64); 3]>,
}

impl Spans {
    /// All of an axis of `size`; no span where that is 0.
    pub fn whole(size: u64) -> Self {
        let mut spans = Self::default();
        spans.push(0, size);
        spans
    }

    /// Length of all spans together: the size of the local axis.
    pub fn total(&self) -> u64 {
        self.spans.iter().map(|&(_, length)| length).sum()
    }

    /// The ranges as `(start, length)`.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.spans.iter().copied()
    }

    /// The `length` elements from `start` on, counted along the local axis; fewer where it ends before.
    pub fn part(&self, start: u64, length: u64) -> Self {
        let end = start.saturating_add(length);
        let mut part = Self::default();
        let mut at = 0;
        for &(global, size) in &self.spans {
            let (from, to) = (start.max(at), end.min(at + size));
            if from < to {
                part.push(global + (from - at), to - from);
            }
            at += size;
        }
        part
    }

    /// Adds the spans of `other` behind these.
    pub(crate) fn append(&mut self, other: &Spans) {
        other.iter().for_each(|(start, length)| self.push(start, length));
    }

    fn push(&mut self, start: u64, length: u64) {
        if length == 0 {
            return;
        }
        match self.spans.last_mut() {
            Some((before, size)) if *before + *size == start => *size += length,
            _ => self.spans.push((start, length)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_along_the_local_axis() {
        let mut spans = Spans::default();
        for (start, length) in [(10, 4), (30, 0), (20, 2), (22, 3)] {
            spans.push(start, length);
        }
        assert_eq!(spans.iter().collect::<Vec<_>>(), [(10, 4), (20, 5)]);
        assert_eq!(spans.total(), 9);
        assert_eq!(spans.part(3, 3).iter().collect::<Vec<_>>(), [(13, 1), (20, 2)]);
        assert_eq!(spans.part(7, 9).iter().collect::<Vec<_>>(), [(23, 2)]);
        assert_eq!(spans.part(9, 1), Spans::default());
        assert_eq!(Spans::whole(0), Spans::default());
    }
}
