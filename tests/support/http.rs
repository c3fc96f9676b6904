//! What operators read over HTTP.

/// Status and text of a page.
pub(crate) async fn get(url: &str) -> (u16, String) {
    let client = intent_ledger::tls::http_client().build().unwrap();
    let response = client.get(url).send().await.unwrap_or_else(|error| panic!("{url}: {error}"));
    let status = response.status().as_u16();
    (status, response.text().await.unwrap())
}
