//! The query of a request: `?records=10&seconds=5`.

use axum::http::Uri;

/// Reads the numeric fields of a query. `known` has the name, the default and the maximum of each field. If the query is invalid, the error
/// is the text of the answer.
pub fn numbers<const N: usize>(
    uri: &Uri,
    known: [(&str, u64, u64); N],
) -> Result<[u64; N], String> {
    let mut values = known.map(|(_, default, _)| default);
    for pair in uri.query().unwrap_or_default().split('&') {
        if pair.is_empty() {
            continue;
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let at = known.iter().position(|(other, ..)| *other == name);
        let Some(at) = at else {
            let names: Vec<_> = known.iter().map(|(name, ..)| *name).collect();
            let names = names.join(", ");
            return Err(format!("there is no {name:?} here; there are: {names}\n"));
        };
        let most = known[at].2;
        values[at] = match value.parse() {
            Ok(number) if (1..=most).contains(&number) => number,
            _ => return Err(format!("{name:?} takes a number from 1 to {most}\n")),
        };
    }
    Ok(values)
}

/// Reads the text fields of a query (names of nodes, positions, ids). The query must contain each of `fields` exactly once, and no other
/// field.
pub fn words<const N: usize>(uri: &Uri, fields: [&str; N]) -> Result<[String; N], String> {
    let pairs: Vec<_> = uri.query().unwrap_or_default().split('&').collect();
    let value = |field: &str| {
        let mut values = pairs.iter().filter_map(|pair| word(pair, field));
        values.next().map(str::to_owned)
    };
    let values: Vec<_> = fields.iter().filter_map(|field| value(field)).collect();
    let values = <[String; N]>::try_from(values);
    values.ok().filter(|_| pairs.len() == N).ok_or_else(|| {
        let needed = fields.map(|field| format!("{field}=..."));
        format!("it needs `?{}`\n", needed.join("&"))
    })
}

/// Returns the value of `pair` if it is `field=VALUE` and the value has only permitted characters.
fn word<'a>(pair: &'a str, field: &str) -> Option<&'a str> {
    let word = pair.strip_prefix(field)?.strip_prefix('=')?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (!word.is_empty() && word.bytes().all(fits)).then_some(word)
}

/// Returns the values of `field`, which are names of nodes. Fails if the query has another field.
pub fn names(uri: &Uri, field: &str) -> Result<Vec<String>, String> {
    let query = uri.query().unwrap_or_default();
    let value = |pair: &str| word(pair, field).map(str::to_owned);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let values: Option<_> = pairs.map(value).collect();
    values.ok_or_else(|| format!("it takes `?{field}=NAME`\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &'static str) -> Result<[u64; 2], String> {
        let uri = Uri::from_static(query);
        numbers(&uri, [("records", 100, 1000), ("seconds", 5, 10)])
    }

    #[test]
    fn the_query_must_have_each_field_once_with_a_valid_name() {
        let read = |text| words(&Uri::from_static(text), ["consumer"]);
        assert_eq!(read("/x?consumer=a_b-1"), Ok(["a_b-1".to_owned()]));
        let both = |text| words(&Uri::from_static(text), ["a", "b"]);
        let wanted = Ok(["1".to_owned(), "2".to_owned()]);
        assert_eq!(both("/x?b=2&a=1"), wanted);
        for wrong in ["/x?a=1", "/x?a=1&a=2", "/x?a=1&b=2&c=3", "/x?a=1&b"] {
            assert!(both(wrong).is_err(), "{wrong}");
        }
        for wrong in [
            "/x",
            "/x?consumer=",
            "/x?consumer",
            "/x?other=a",
            "/x?consumer=a&b=c",
            "/x?consumer=%2e",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn known_numbers_within_their_limits_are_read() {
        assert_eq!(read("/tap/in"), Ok([100, 5]));
        assert_eq!(read("/tap/in?seconds=10&records=1"), Ok([1, 10]));
        for wrong in [
            "/tap/in?x=1",
            "/tap/in?records",
            "/tap/in?records=0",
            "/tap/in?records=-1",
            "/tap/in?records=1001",
            "/tap/in?records=99999999999999999999",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
