use crate::overlap::first_overlap;
use crate::placement::{Placement, check_local, dense_strides};
use crate::region::{Dims, Region, RegionError, volume_of};
use crate::{Cuts, DType, Replica, ShardError, Split};
use serde::{Deserialize, Serialize};

/// Which part of the training state a tensor belongs to; each part has data files of its own and can be selected
/// on its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateGroup {
    /// Parameters and buffers.
    Model,
    /// Optimizer state, such as Adam's moments.
    Optimizer,
}

/// One rank's shard of one tensor: what part it is, and how it lies in the rank's memory. It holds no data.
///
/// Valid by construction: regions lie in the global shape, do not overlap, and have disjoint places in a local
/// buffer of [`ShardedTensor::local_elements`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardedTensor {
    dtype: DType,
    global_shape: Dims,
    logical_shape: Option<Dims>,
    padded_axes: Vec<usize>,
    split: Option<Split>,
    placements: Vec<Placement>,
    local_shape: Dims,
    replica: Replica,
    alias_of: Option<String>,
    group: StateGroup,
    parameter: Option<String>,
}

impl ShardedTensor {
    /// Starts the description of a shard of a tensor of `global_shape`.
    pub fn builder(dtype: DType, global_shape: impl AsRef<[u64]>) -> ShardedTensorBuilder {
        ShardedTensorBuilder {
            tensor: ShardedTensor {
                dtype,
                global_shape: Dims::from_slice(global_shape.as_ref()),
                logical_shape: None,
                padded_axes: Vec::new(),
                split: None,
                placements: Vec::new(),
                local_shape: Dims::new(),
                replica: Replica::SOLE,
                alias_of: None,
                group: StateGroup::Model,
                parameter: None,
            },
            layout: Layout::Whole,
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape of the whole tensor, in elements, padding included.
    pub fn global_shape(&self) -> &Dims {
        &self.global_shape
    }

    /// Shape without padding, where it is known to differ or may.
    pub fn logical_shape(&self) -> Option<&Dims> {
        self.logical_shape.as_ref()
    }

    /// Axes on which a saved and a wanted tensor may differ in size by padding at the end.
    pub fn padded_axes(&self) -> &[usize] {
        &self.padded_axes
    }

    /// How the tensor is meant to be cut; `None` = always whole.
    pub fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// The regions that this rank holds and their places in the local buffer; none for an empty shard.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// Shape of the rank's local array. Its product is the size of the local buffer in elements.
    pub fn local_shape(&self) -> &Dims {
        &self.local_shape
    }

    /// Size of the local buffer in elements.
    pub fn local_elements(&self) -> u64 {
        self.local_shape.iter().product()
    }

    /// Size of the local buffer in bytes.
    pub fn local_bytes(&self) -> u64 {
        match self.dtype.element_bytes() {
            Some(bytes) => self.local_elements() * bytes,
            None => self.local_elements() * self.dtype.bits() / 8,
        }
    }

    /// Which copy of the shard this rank holds.
    pub fn replica(&self) -> Replica {
        self.replica
    }

    /// The tensor whose storage this one shares (tied weights); its bytes are saved once, under that key.
    pub fn alias_of(&self) -> Option<&str> {
        self.alias_of.as_deref()
    }

    /// Model or optimizer.
    pub fn group(&self) -> StateGroup {
        self.group
    }

    /// The parameter that an optimizer state belongs to; it places the state beside its parameter's neighbours in
    /// a file.
    pub fn parameter(&self) -> Option<&str> {
        self.parameter.as_deref()
    }

    /// Starts a description with everything of this one, for a tensor sharded alike (an optimizer state).
    pub fn derive(&self) -> ShardedTensorBuilder {
        ShardedTensorBuilder { tensor: self.clone(), layout: Layout::Kept }
    }
}

enum Layout {
    /// One region, the whole tensor.
    Whole,
    /// Regions laid along the split axis (or one after another) by [`ShardedTensorBuilder::regions`].
    Regions(Vec<Region>),
    /// Explicit placements and local shape.
    Placed,
    /// As in the tensor it was derived from.
    Kept,
}

/// Describes a [`ShardedTensor`] step by step; [`build`](Self::build) checks it.
pub struct ShardedTensorBuilder {
    tensor: ShardedTensor,
    layout: Layout,
}

impl ShardedTensorBuilder {
    /// Sets the element type.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.tensor.dtype = dtype;
        self
    }

    /// The rank holds one box. An empty `shape` size (0 on some axis) makes an empty shard; offsets are in elements.
    pub fn region(self, offset: impl AsRef<[u64]>, shape: impl AsRef<[u64]>) -> Result<Self, RegionError> {
        let shape = shape.as_ref();
        if shape.contains(&0) {
            return Ok(self.placed(Vec::new(), shape));
        }
        let region = Region::new(offset, shape)?;
        Ok(self.regions([region]))
    }

    /// The rank holds these boxes, in this order along the split axis of its local array (packed QKV:
    /// `[q_r | k_r | v_r]`). They must agree in size on all other axes. No boxes = an empty shard.
    pub fn regions(mut self, regions: impl IntoIterator<Item = Region>) -> Self {
        self.layout = Layout::Regions(regions.into_iter().collect());
        self
    }

    /// The rank holds these boxes at explicit places of a local array of `local_shape`.
    pub fn placed(mut self, placements: Vec<Placement>, local_shape: impl AsRef<[u64]>) -> Self {
        self.tensor.placements = placements;
        self.tensor.local_shape = Dims::from_slice(local_shape.as_ref());
        self.layout = Layout::Placed;
        self
    }

    /// The rank holds what `cuts` leave of the tensor, laid densely.
    ///
    /// # Errors
    /// [`RegionError`] as for [`Cuts::placements`].
    pub fn cuts(self, cuts: &Cuts) -> Result<Self, RegionError> {
        Ok(self.placed(cuts.placements()?, cuts.local_shape()))
    }

    /// How the tensor is meant to be cut.
    pub fn split(mut self, split: Split) -> Self {
        self.tensor.split = Some(split);
        self
    }

    /// Which copy this rank holds.
    pub fn replica(mut self, replica: Replica) -> Self {
        self.tensor.replica = replica;
        self
    }

    /// Allows padding at the end of `axis`.
    pub fn padded(mut self, axis: usize) -> Self {
        if !self.tensor.padded_axes.contains(&axis) {
            self.tensor.padded_axes.push(axis);
            self.tensor.padded_axes.sort_unstable();
        }
        self
    }

    /// Shape without padding.
    pub fn logical_shape(mut self, logical_shape: impl AsRef<[u64]>) -> Self {
        self.tensor.logical_shape = Some(Dims::from_slice(logical_shape.as_ref()));
        self
    }

    /// Shares the storage of another tensor.
    pub fn alias_of(mut self, key: impl Into<String>) -> Self {
        self.tensor.alias_of = Some(key.into());
        self
    }

    /// Shares no storage (drops what [`ShardedTensor::derive`] brought along).
    pub fn no_alias(mut self) -> Self {
        self.tensor.alias_of = None;
        self
    }

    /// Model or optimizer; model where not said.
    pub fn group(mut self, group: StateGroup) -> Self {
        self.tensor.group = group;
        self
    }

    /// The parameter that this optimizer state belongs to.
    pub fn parameter(mut self, key: impl Into<String>) -> Self {
        self.tensor.parameter = Some(key.into());
        self
    }

    /// Checks the description. `key` is only for errors.
    ///
    /// # Errors
    /// [`ShardError`] naming the key, the region and the sizes.
    pub fn build(mut self, key: &str) -> Result<ShardedTensor, ShardError> {
        let region_error = |source| ShardError::Region { key: key.to_owned(), source };
        if self.tensor.global_shape.len() > crate::MAX_AXES {
            return Err(region_error(RegionError::TooManyAxes(self.tensor.global_shape.len())));
        }
        volume_of(&self.tensor.global_shape)
            .and_then(|volume| volume.checked_mul(self.tensor.dtype.bits()).ok_or(RegionError::Overflow))
            .map_err(region_error)?;
        match std::mem::replace(&mut self.layout, Layout::Placed) {
            Layout::Whole => {
                let whole = Region::whole(&self.tensor.global_shape).map_err(region_error)?;
                self.tensor.local_shape = self.tensor.global_shape.clone();
                self.tensor.placements = whole
                    .map(|region| Placement::dense(region, 0))
                    .transpose()
                    .map_err(region_error)?
                    .into_iter()
                    .collect();
            }
            Layout::Regions(regions) => self.lay_regions(key, regions)?,
            Layout::Placed | Layout::Kept => {}
        }
        self.check(key)?;
        Ok(self.tensor)
    }

    /// Lays regions one after another along the split axis (axis 0 where none is declared).
    fn lay_regions(&mut self, key: &str, regions: Vec<Region>) -> Result<(), ShardError> {
        let tensor = &mut self.tensor;
        let region_error = |source| ShardError::Region { key: key.to_owned(), source };
        let axis = tensor.split.as_ref().map_or(0, |split| split.axis);
        let Some(first) = regions.first() else {
            tensor.local_shape = tensor.global_shape.clone();
            // An empty shard of a 0-dim tensor has no axis to be empty on; a 1-d local array of size 0 says it.
            match tensor.local_shape.get_mut(axis) {
                Some(size) => *size = 0,
                None => tensor.local_shape = smallvec::smallvec![0],
            }
            tensor.placements = Vec::new();
            return Ok(());
        };
        let mut local_shape = Dims::from_slice(first.shape());
        if regions.len() > 1 {
            let mut along = 0u64;
            for region in &regions {
                let same = region.ndim() == local_shape.len()
                    && axis < region.ndim()
                    && (0..region.ndim()).all(|a| a == axis || region.shape()[a] == local_shape[a]);
                if !same {
                    return Err(ShardError::Placement {
                        key: key.to_owned(),
                        region: Box::new(region.clone()),
                        local_elements: 0,
                        why: "regions laid along the split axis must agree in size on the others; place them explicitly",
                    });
                }
                along = along.checked_add(region.shape()[axis]).ok_or(region_error(RegionError::Overflow))?;
            }
            local_shape[axis] = along;
        }
        let mut start: Dims = smallvec::smallvec![0; local_shape.len()];
        tensor.placements = Vec::with_capacity(regions.len());
        for region in regions {
            let along = region.shape().get(axis).copied().unwrap_or(0);
            tensor.placements.push(Placement::in_array(region, &local_shape, &start).map_err(region_error)?);
            if let Some(place) = start.get_mut(axis) {
                *place += along;
            }
        }
        tensor.local_shape = local_shape;
        Ok(())
    }

    fn check(&self, key: &str) -> Result<(), ShardError> {
        let tensor = &self.tensor;
        let owned = || key.to_owned();
        let region_error = |source| ShardError::Region { key: owned(), source };
        for placement in &tensor.placements {
            placement.region.check_within(&tensor.global_shape).map_err(region_error)?;
        }
        dense_strides(&tensor.local_shape).map_err(region_error)?;
        let local_elements = volume_of(&tensor.local_shape)
            .and_then(|count| {
                count.checked_mul(tensor.dtype.bits()).map(|_| count).ok_or(RegionError::Overflow)
            })
            .map_err(region_error)?;
        if tensor.placements.len() > 1 {
            let regions = || tensor.placements.iter().map(|placement| &placement.region);
            if let Some(point) = first_overlap(regions) {
                return Err(ShardError::RegionsOverlap { key: owned(), point });
            }
        }
        check_local(&tensor.placements, local_elements).map_err(|(placement, why)| {
            ShardError::Placement {
                key: owned(),
                region: Box::new(placement.region.clone()),
                local_elements,
                why,
            }
        })?;
        if let Some(split) = &tensor.split
            && !split.fits(&tensor.global_shape)
        {
            return Err(ShardError::Split {
                key: owned(),
                axis: split.axis,
                segments: split.segments.clone(),
                global_shape: tensor.global_shape.clone(),
            });
        }
        self.check_logical_shape(key)?;
        if tensor.dtype.is_opaque() {
            self.check_opaque(key)?;
        }
        Ok(())
    }

    fn check_logical_shape(&self, key: &str) -> Result<(), ShardError> {
        let tensor = &self.tensor;
        let logical = tensor.logical_shape.as_ref().unwrap_or(&tensor.global_shape);
        let fits = logical.len() == tensor.global_shape.len()
            && tensor.padded_axes.iter().all(|&axis| axis < tensor.global_shape.len())
            && (0..logical.len()).all(|axis| {
                logical[axis] == tensor.global_shape[axis]
                    || logical[axis] < tensor.global_shape[axis] && tensor.padded_axes.contains(&axis)
            });
        if fits {
            return Ok(());
        }
        Err(ShardError::LogicalShape {
            key: key.to_owned(),
            logical_shape: logical.to_vec(),
            global_shape: tensor.global_shape.to_vec(),
            padded_axes: tensor.padded_axes.clone(),
        })
    }

    fn check_opaque(&self, key: &str) -> Result<(), ShardError> {
        let tensor = &self.tensor;
        let whole = Region::whole(&tensor.global_shape).ok().flatten();
        let dense = match (tensor.placements.as_slice(), &whole) {
            ([], _) => true,
            ([one], Some(whole)) => {
                one.region == *whole
                    && one.local_offset == 0
                    && dense_strides(whole.shape()).is_ok_and(|strides| strides == one.strides)
            }
            _ => false,
        };
        // A whole number of bytes, so that the tensor's payload has a length at all.
        let bits = tensor.global_shape.iter().product::<u64>() * tensor.dtype.bits();
        if dense && bits.is_multiple_of(8) && tensor.padded_axes.is_empty() {
            return Ok(());
        }
        Err(ShardError::OpaqueSplit { key: key.to_owned(), dtype: tensor.dtype })
    }
}
