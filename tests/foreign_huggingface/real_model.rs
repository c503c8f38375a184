//! A published model, read in place.

use super::block_on;
use super::fetch::model;
use reshard::foreign::{Detected, detect, huggingface};
use reshard::storage::{DiskBackend, StorageBackend};
use reshard_oracle::first_difference;
use safetensors::SafeTensors;
use std::fs;

#[test]
fn a_published_model_is_read_in_place() {
    let folder = model();
    let storage = DiskBackend::new(&folder).unwrap();
    let Detected::HuggingFace(source) = block_on(detect(&storage, None)).unwrap() else {
        panic!("not detected");
    };
    let layout = block_on(huggingface::open(&storage, &source)).unwrap();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(layout.tensors.len(), expected.len());
    for (key, view) in expected.tensors() {
        let tensor = &layout.tensors[&key];
        let shape: Vec<u64> = view.shape().iter().map(|&size| size as u64).collect();
        assert_eq!(tensor.global_shape.as_slice(), shape, "{key}");
        assert_eq!(tensor.dtype.safetensors_name(), view.dtype().to_string(), "{key}");
        assert_eq!(tensor.chunks.len(), 1);
        let chunk = tensor.chunks.get(0).unwrap();
        let file = source.directory().file(&layout.files[chunk.file as usize].path).unwrap();
        let length = view.data().len();
        let (slot, result) = block_on(storage.read(
            &file,
            chunk.offset..chunk.offset + length as u64,
            Box::new(vec![0u8; length]),
        ));
        result.unwrap();
        assert_eq!(first_difference(slot.bytes(), view.data()), None, "{key}");
    }
}
