//! An index over the chunks of one tensor: which of them touch a region, without looking at all of them.

use reshard_shard::Region;

/// Boxes below a node are looked at one by one.
const LEAF: usize = 8;

/// A static bounding-box tree, built in O(n log n). For the disjoint chunks of a tensor a query takes O(log n) and
/// the number of its answers, up to the usual boundary effects.
pub(crate) struct BoxTree {
    /// Permutation of the boxes; a node owns a range of it.
    order: Vec<u32>,
    boxes: Vec<Region>,
    nodes: Vec<Node>,
}

struct Node {
    /// Lower and upper corner of everything below.
    low: Vec<u64>,
    high: Vec<u64>,
    first: usize,
    past: usize,
    /// Index of the left child; the right one follows the left one's subtree. 0 = a leaf.
    left: usize,
    right: usize,
}

impl BoxTree {
    /// Indexes the boxes, all of the same number of axes.
    pub(crate) fn new(boxes: Vec<Region>) -> Self {
        let mut tree = Self { order: (0..boxes.len() as u32).collect(), boxes, nodes: Vec::new() };
        if !tree.boxes.is_empty() {
            tree.build(0, tree.boxes.len());
        }
        tree
    }

    fn build(&mut self, first: usize, past: usize) -> usize {
        let ndim = self.boxes[0].ndim();
        let (mut low, mut high) = (vec![u64::MAX; ndim], vec![0; ndim]);
        let (mut least, mut most) = (vec![u64::MAX; ndim], vec![0; ndim]);
        for &index in &self.order[first..past] {
            let region = &self.boxes[index as usize];
            for axis in 0..ndim {
                low[axis] = low[axis].min(region.offset()[axis]);
                high[axis] = high[axis].max(region.end(axis));
                least[axis] = least[axis].min(region.offset()[axis]);
                most[axis] = most[axis].max(region.offset()[axis]);
            }
        }
        let id = self.nodes.len();
        self.nodes.push(Node { low, high, first, past, left: 0, right: 0 });
        // The axis along which starts differ most, relative to what the node spans there.
        let spread = |axis: usize| {
            let node = &self.nodes[id];
            (most[axis] - least[axis]) as f64 / (node.high[axis] - node.low[axis]).max(1) as f64
        };
        let widest = (0..ndim).max_by(|&a, &b| spread(a).total_cmp(&spread(b)));
        let Some(axis) = widest.filter(|&axis| past - first > LEAF && most[axis] > least[axis]) else {
            return id;
        };
        let middle = (past - first) / 2;
        let boxes = &self.boxes;
        self.order[first..past]
            .select_nth_unstable_by_key(middle, |&index| (boxes[index as usize].offset()[axis], index));
        let left = self.build(first, first + middle);
        let right = self.build(first + middle, past);
        (self.nodes[id].left, self.nodes[id].right) = (left, right);
        id
    }

    /// The boxes that share an element with `region`, with the common part, in ascending order of their index.
    pub(crate) fn hits(&self, region: &Region) -> Vec<(usize, Region)> {
        let mut found = Vec::new();
        let mut pending = if self.nodes.is_empty() { Vec::new() } else { vec![0] };
        while let Some(id) = pending.pop() {
            let node = &self.nodes[id];
            let apart = (0..region.ndim())
                .any(|axis| region.end(axis) <= node.low[axis] || region.offset()[axis] >= node.high[axis]);
            if apart {
                continue;
            }
            if node.left != 0 {
                pending.extend([node.left, node.right]);
                continue;
            }
            for &index in &self.order[node.first..node.past] {
                let common = self.boxes[index as usize].intersect(region);
                found.extend(common.map(|common| (index as usize, common)));
            }
        }
        found.sort_unstable_by_key(|&(index, _)| index);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_scan_finds(
            raw in proptest::collection::vec((0u64..60, 0u64..60, 1u64..20, 1u64..20), 0..120),
            query in (0u64..60, 0u64..60, 1u64..40, 1u64..40),
        ) {
            let boxes: Vec<Region> = raw.iter().map(|&(x, y, a, b)| Region::new([x, y], [a, b]).unwrap()).collect();
            let query = Region::new([query.0, query.1], [query.2, query.3]).unwrap();
            let scan: Vec<(usize, Region)> = boxes.iter().enumerate()
                .filter_map(|(index, region)| Some((index, region.intersect(&query)?))).collect();
            prop_assert_eq!(BoxTree::new(boxes).hits(&query), scan);
        }
    }

    #[test]
    fn scalars_and_equal_boxes_are_found() {
        let scalar = Region::new([], []).unwrap();
        assert_eq!(BoxTree::new(vec![scalar.clone()]).hits(&scalar).len(), 1);
        assert_eq!(BoxTree::new(vec![scalar.clone(); 50]).hits(&scalar).len(), 50);
        assert!(BoxTree::new(Vec::new()).hits(&scalar).is_empty());
    }
}
