use super::{PlanError, SavePlan, WriteSource};
use crate::format::{Chunk, ChunkTable, SavedObject, SavedTensor, WriterManifest, WrittenFile};
use reshard_shard::{ShardedStateDict, ShardedTensor};

/// What a rank tells rank 0 once its files are durable: the files with the checksums of their block tables, and where
/// each chunk lies. `tables` has the CRC32C of every file's block table, in the plan's order.
///
/// Aliases and tensors without elements have no chunk that would name them; their main replica declares them.
///
/// # Errors
/// [`PlanError::Format`], never for a plan that the planner made.
pub fn manifest(
    plan: &SavePlan,
    dict: &ShardedStateDict,
    tables: &[u32],
) -> Result<WriterManifest, PlanError> {
    let mut manifest = WriterManifest::default();
    for (key, tensor) in dict.iter() {
        let bare = tensor.alias_of().is_some() || tensor.global_shape().contains(&0);
        if bare && tensor.replica().id() == 0 {
            manifest.tensors.insert(key.to_owned(), describe(tensor));
        }
    }
    for (index, (file, &table)) in plan.files.iter().zip(tables).enumerate() {
        let file_index = index as u32;
        let blocks =
            file.layout.block_layout(table).map_err(|fault| crate::format::FormatError::Blocks { fault })?;
        manifest.files.push(WrittenFile { name: file.name, blocks });
        for write in &file.writes {
            let offset = write.range.start;
            match (&write.source, &write.region) {
                (WriteSource::Object(name), _) => {
                    let length = write.range.end - offset;
                    manifest.objects.insert(name.clone(), SavedObject { file: file_index, offset, length });
                }
                (WriteSource::Tensor(key), Some(region)) => {
                    let Some(tensor) = dict.get(key) else { continue };
                    let entry = manifest.tensors.entry(key.clone()).or_insert_with(|| describe(tensor));
                    entry.chunks.push(&Chunk { region: region.clone(), file: file_index, offset });
                }
                (WriteSource::Tensor(_), None) => {}
            }
        }
    }
    Ok(manifest)
}

/// A tensor's description without chunks.
fn describe(tensor: &ShardedTensor) -> SavedTensor {
    SavedTensor {
        dtype: tensor.dtype(),
        global_shape: tensor.global_shape().clone(),
        logical_shape: tensor.logical_shape().cloned(),
        split: tensor.split().cloned(),
        alias_of: tensor.alias_of().map(str::to_owned),
        group: tensor.group(),
        chunks: ChunkTable::new(tensor.global_shape().len()),
    }
}
