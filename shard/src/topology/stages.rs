use super::Topology;
use crate::ShardError;
use std::ops::Range;

/// Which pipeline rank holds which layers, by global layer number.
///
/// The model is cut into `pp * vpp` chunks of consecutive layers. Chunk `c` lies on pipeline rank `c % pp`, as that
/// rank's chunk `c / pp`. What comes before the layers (embeddings) lies on chunk 0, what comes after them (final
/// norm, output head) on the last chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerStages {
    pp: u64,
    /// First layer of every chunk, then the number of layers.
    starts: Vec<u64>,
}

impl LayerStages {
    /// `layers` spread evenly: every chunk gets `layers / chunks`, and the first `layers % chunks` one more.
    ///
    /// # Errors
    /// [`ShardError::Chunks`] for a number of chunks that no machine could hold.
    pub fn even(topology: &Topology, layers: u64) -> Result<Self, ShardError> {
        let chunks = Self::chunks(topology)?;
        let (base, more) = (layers / chunks, layers % chunks);
        Self::explicit(topology, &(0..chunks).map(|chunk| base + u64::from(chunk < more)).collect::<Vec<_>>())
    }

    /// `layers_of_chunk[c]` layers on chunk `c`, possibly 0.
    ///
    /// # Errors
    /// [`ShardError::Chunks`] where there are not `pp * vpp` numbers, or their sum overflows.
    pub fn explicit(topology: &Topology, layers_of_chunk: &[u64]) -> Result<Self, ShardError> {
        let wrong = |chunks| ShardError::Chunks {
            given: layers_of_chunk.len(),
            chunks,
            pp: topology.pipeline_size(),
            vpp: topology.vpp(),
        };
        let chunks = Self::chunks(topology)?;
        if layers_of_chunk.len() as u64 != chunks {
            return Err(wrong(chunks));
        }
        let mut starts = vec![0u64];
        let mut start = 0u64;
        for &layers in layers_of_chunk {
            start = start.checked_add(layers).ok_or_else(|| wrong(chunks))?;
            starts.push(start);
        }
        Ok(Self { pp: topology.pipeline_size(), starts })
    }

    fn chunks(topology: &Topology) -> Result<u64, ShardError> {
        let (pp, vpp) = (topology.pipeline_size(), topology.vpp());
        // As many chunks as ranks fit in 32 bits is already far more than any model has layers.
        pp.checked_mul(vpp).filter(|&chunks| chunks <= u64::from(u32::MAX)).ok_or(ShardError::Chunks {
            given: 0,
            chunks: u64::MAX,
            pp,
            vpp,
        })
    }

    /// Number of layers of the model.
    pub fn layers(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The chunk that holds `layer`; `None` past the last layer.
    pub fn chunk_of(&self, layer: u64) -> Option<u64> {
        // The last chunk that starts at or before the layer: empty chunks before it start there too.
        (layer < self.layers()).then(|| self.starts.partition_point(|&start| start <= layer) as u64 - 1)
    }

    /// The pipeline rank that holds `layer`; `None` past the last layer.
    pub fn rank_of(&self, layer: u64) -> Option<u64> {
        self.chunk_of(layer).map(|chunk| chunk % self.pp)
    }

    /// The pipeline rank of what comes before the layers.
    pub fn first_rank(&self) -> u64 {
        0
    }

    /// The pipeline rank of what comes after the layers.
    pub fn last_rank(&self) -> u64 {
        self.pp - 1
    }

    /// The layers of each of a pipeline rank's chunks, in order.
    pub fn layers_of(&self, pp_rank: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let chunks = self.starts.windows(2).map(|ends| ends[0]..ends[1]);
        chunks.skip(pp_rank as usize).step_by(self.pp as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParallelSizes;

    fn topology(pp: u64, vpp: u64) -> Topology {
        ParallelSizes { tp: 2, pp, vpp, ..Default::default() }.topology().unwrap()
    }

    #[test]
    fn the_remainder_goes_to_the_first_chunks() {
        let stages = LayerStages::even(&topology(5, 1), 12).unwrap();
        let counts: Vec<u64> =
            (0..5).map(|rank| stages.layers_of(rank).map(|layers| layers.end - layers.start).sum()).collect();
        assert_eq!(counts, [3, 3, 2, 2, 2]);
        assert_eq!((stages.first_rank(), stages.last_rank()), (0, 4));
    }

    /// Against dealing the layers out by hand.
    #[test]
    fn every_layer_lies_where_the_formula_says() {
        for (layers, pp, vpp) in [(12, 2, 3), (13, 4, 2), (3, 4, 1), (1, 1, 1), (0, 2, 1), (61, 4, 4)] {
            let stages = LayerStages::even(&topology(pp, vpp), layers).unwrap();
            let chunks = pp * vpp;
            let mut next = 0;
            for chunk in 0..chunks {
                let size = layers / chunks + if chunk < layers % chunks { 1 } else { 0 };
                let listed = stages.layers_of(chunk % pp).nth((chunk / pp) as usize);
                assert_eq!(listed, Some(next..next + size));
                for layer in next..next + size {
                    assert_eq!(stages.chunk_of(layer), Some(chunk));
                    assert_eq!(stages.rank_of(layer), Some(chunk % pp));
                }
                next += size;
            }
            assert_eq!(next, layers);
            assert_eq!(stages.rank_of(layers), None);
        }
    }

    #[test]
    fn explicit_chunks_may_be_empty_and_must_be_complete() {
        let stages = LayerStages::explicit(&topology(2, 2), &[1, 0, 4, 2]).unwrap();
        let ranks: Vec<_> = (0..7).map(|layer| stages.rank_of(layer).unwrap()).collect();
        assert_eq!(ranks, [0, 0, 0, 0, 0, 1, 1]);
        let error = LayerStages::explicit(&topology(2, 2), &[4, 3]).unwrap_err();
        assert_eq!(error, ShardError::Chunks { given: 2, chunks: 4, pp: 2, vpp: 2 });
    }
}
