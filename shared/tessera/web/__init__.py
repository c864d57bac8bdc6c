"""Code that every Litestar app of the suite shares, torch-free."""
