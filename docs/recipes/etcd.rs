/// Writes, unless the lease is in another term than that of the token. Answers whether it has.
async fn write(
    client: &mut etcd_client::Client,
    lease: &str,
    token: FencingToken,
    (key, value): (&str, &str),
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    use etcd_client::{Compare, CompareOp, Txn, TxnOp};

    // The token is the revision that the lease's key was made at.
    let of_this_term =
        Compare::create_revision(lease, CompareOp::Equal, i64::try_from(token.get())?);
    let txn = Txn::new().when([of_this_term]).and_then([TxnOp::put(key, value, None)]);
    Ok(client.txn(txn).await?.succeeded())
}
