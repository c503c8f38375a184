use crate::ShardError;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Globs over whole keys, each with the number of the entry it stands in.
pub(super) struct Globs {
    set: GlobSet,
    owners: Vec<usize>,
    texts: Vec<String>,
}

impl Globs {
    /// One entry for each list of globs.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a [String]>) -> Result<Self, ShardError> {
        let mut builder = GlobSetBuilder::new();
        let (mut owners, mut texts) = (Vec::new(), Vec::new());
        let wrong = |error: globset::Error| ShardError::Rules { why: format!("glob: {error}") };
        for (owner, globs) in entries.into_iter().enumerate() {
            for glob in globs {
                builder.add(GlobBuilder::new(glob).literal_separator(false).build().map_err(wrong)?);
                owners.push(owner);
                texts.push(glob.clone());
            }
        }
        Ok(Self { set: builder.build().map_err(wrong)?, owners, texts })
    }

    /// The first entry that matches, and its glob. Globs are numbered in order, so the smallest number is the first.
    pub fn first(&self, key: &str) -> Option<(usize, &str)> {
        let glob = self.set.matches(key).into_iter().min()?;
        Some((*self.owners.get(glob)?, self.texts.get(glob)?))
    }
}

/// Text with one placeholder: `transformer.h.{layer}.`.
pub(super) struct Template {
    before: String,
    after: String,
}

impl Template {
    /// # Errors
    /// [`ShardError::Rules`] where `text` has not exactly one `placeholder`.
    pub fn new(text: &str, placeholder: &str) -> Result<Self, ShardError> {
        match text.split(placeholder).collect::<Vec<_>>().as_slice() {
            [before, after] => Ok(Self { before: (*before).to_owned(), after: (*after).to_owned() }),
            _ => Err(ShardError::Rules { why: format!("`{text}` must have one `{placeholder}`") }),
        }
    }

    /// What stands for the placeholder, where the template is the whole key.
    pub fn whole<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(self.before.as_str())?
            .strip_suffix(self.after.as_str())
            .filter(|name| !name.is_empty())
    }

    /// The number that stands for the placeholder at the first place in the key where the template fits.
    pub fn number(&self, key: &str) -> Option<u64> {
        key.match_indices(self.before.as_str()).find_map(|(at, _)| {
            let rest = &key[at + self.before.len()..];
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = rest.split_at(digits);
            rest.starts_with(self.after.as_str()).then(|| number.parse().ok())?
        })
    }

    /// The template with `name` for the placeholder.
    pub fn fill(&self, name: &str) -> String {
        format!("{}{name}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_found() {
        let layer = Template::new(".h.{layer}.", "{layer}").unwrap();
        assert_eq!(layer.number("transformer.h.12.ln_1.weight"), Some(12));
        assert_eq!(layer.number("a.h.x.h.7.weight"), Some(7));
        assert_eq!(layer.number("transformer.h.12x.weight"), None);
        assert_eq!(layer.number("transformer.h..weight"), None);
        assert_eq!(layer.number("transformer.h.99999999999999999999.weight"), None);
        let state = Template::new("optimizer.state.{param}.exp_avg", "{param}").unwrap();
        assert_eq!(state.whole("optimizer.state.a.b.exp_avg"), Some("a.b"));
        assert_eq!(state.whole("optimizer.state.a.b.exp_avg_sq"), None);
        assert_eq!(state.whole("optimizer.state..exp_avg"), None);
        assert_eq!(state.fill("w"), "optimizer.state.w.exp_avg");
        assert!(Template::new("adam.m", "{param}").is_err());
        assert!(Template::new("{param}{param}", "{param}").is_err());
    }

    #[test]
    fn the_first_entry_that_matches_holds() {
        let entries = [vec!["*.c_attn.{weight,bias}".to_owned()], vec!["*.bias".to_owned(), "*".to_owned()]];
        let globs = Globs::new(entries.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(globs.first("h.0.c_attn.bias"), Some((0, "*.c_attn.{weight,bias}")));
        assert_eq!(globs.first("h.0.c_fc.bias"), Some((1, "*.bias")));
        assert_eq!(globs.first("odd/key with\u{1F980}"), Some((1, "*")));
        assert!(Globs::new([["[".to_owned()].as_slice()]).is_err());
    }
}
