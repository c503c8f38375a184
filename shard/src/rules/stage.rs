use super::PipelineRules;
use super::pattern::{Globs, Template};
use crate::{LayerStages, ShardError, Topology};

/// Finds the pipeline rank of a key.
pub(super) enum StageFinder {
    /// There is one stage.
    Single,
    /// As the table says.
    Table { layer_keys: Vec<Template>, places: Globs, stages: LayerStages },
}

impl StageFinder {
    /// `keys` tell the number of layers where the table does not.
    pub fn new<'k>(
        rules: Option<&PipelineRules>,
        topology: &Topology,
        keys: impl Iterator<Item = &'k str>,
    ) -> Result<Self, ShardError> {
        let Some(rules) = rules else {
            return match topology.pipeline_size() {
                1 => Ok(Self::Single),
                pp => Err(ShardError::Rules {
                    why: format!(
                        "a topology with pp = {pp} needs a table [pipeline] that says which keys are where"
                    ),
                }),
            };
        };
        let layer_keys = rules
            .layer_keys
            .iter()
            .map(|key| Template::new(key, "{layer}"))
            .collect::<Result<Vec<_>, _>>()?;
        let layers = match rules.layers {
            Some(layers) => layers,
            None => keys
                .filter_map(|key| layer_of(&layer_keys, key))
                .max()
                .map_or(0, |last| last.saturating_add(1)),
        };
        let stages = match rules.layers_of_chunk.as_slice() {
            [] => LayerStages::even(topology, layers)?,
            explicit => LayerStages::explicit(topology, explicit)?,
        };
        if stages.layers() != layers {
            let given = stages.layers();
            return Err(ShardError::Rules {
                why: format!("layers_of_chunk are {given} layers, the model has {layers}"),
            });
        }
        let places = Globs::new([rules.first.as_slice(), &rules.last, &rules.every])?;
        Ok(Self::Table { layer_keys, places, stages })
    }

    /// The pipeline rank that holds `key`; `None` = all of them.
    pub fn find(&self, key: &str) -> Result<Option<u64>, ShardError> {
        let Self::Table { layer_keys, places, stages } = self else { return Ok(None) };
        if let Some(layer) = layer_of(layer_keys, key) {
            return match stages.rank_of(layer) {
                Some(pp_rank) => Ok(Some(pp_rank)),
                None => Err(ShardError::Layer { key: key.to_owned(), layer, layers: stages.layers() }),
            };
        }
        match places.first(key) {
            Some((0, _)) => Ok(Some(stages.first_rank())),
            Some((1, _)) => Ok(Some(stages.last_rank())),
            Some(_) => Ok(None),
            None => Err(ShardError::NoStage { key: key.to_owned() }),
        }
    }
}

fn layer_of(templates: &[Template], key: &str) -> Option<u64> {
    templates.iter().find_map(|template| template.number(key))
}
